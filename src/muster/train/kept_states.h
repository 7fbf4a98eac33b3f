#pragma once

// What the update rule knows of parameters while a model changes: each keeps its momentum and its count of
// updates from one strategy to the next, also when it is frozen for a while.
//
//   states.take(*before, rule.states());   // the strategy of the old model
//   states.give(*after);                   // that of the new one
//
// Parameters are known by name, type and shape. A value of the thread that trains; nothing blocks or throws.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "muster/train/strategy.h"

namespace muster::detail {

class KeptStates {
 public:
  /// `states`: how many the rule has. Their values are taken where this worker fills them.
  void take(Strategy& from, size_t states);

  /// Gives what is known of its parameters; what is left is of parameters that are frozen now.
  void give(Strategy& to);

 private:
  struct State {
    int64_t updates = 0;
    std::vector<std::vector<std::byte>> values;
  };
  std::map<std::string, State> states_;
};

}  // namespace muster::detail
