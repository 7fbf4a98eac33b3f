#pragma once

// Which server holds what. Variables are spread over the servers whole, or cut into slices; a pure value: the
// same variables give the same placement on every task.
//
//   round-robin   variable i goes to server i mod n, as tf.train.replica_device_setter did
//   balanced      the largest first, each to the server that has the fewest bytes so far
//   sliced        all variables in a row are cut into n equal parts, so that servers carry equal bytes
//
//   Placement placement(variables, 2, PlacementKind::kSliced);
//   for (const Slice& slice : placement.layout(/*server=*/1).slices()) ...
//
// A server keeps its slices in flat memory, as its FlatLayout says.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "muster/optim/flat_layout.h"

namespace muster::detail {

enum class PlacementKind { kRoundRobin, kBalanced, kSliced };

/// "round-robin", "balanced" or "sliced". Throws InvalidArgument.
PlacementKind parse_placement(const std::string& text);
const char* to_string(PlacementKind kind);

class Placement {
 public:
  /// Throws InvalidArgument for fewer than one server, and for a negative size in a shape.
  Placement(const std::vector<ParameterInfo>& variables, int servers, PlacementKind kind);

  const std::vector<ParameterInfo>& variables() const { return layouts_.front().parameters(); }
  int servers() const { return static_cast<int>(layouts_.size()); }
  PlacementKind kind() const { return kind_; }

  /// Its slices are in the order of the variables; a variable has at most one slice on a server, and none if
  /// it has no elements.
  const FlatLayout& layout(int server) const { return layouts_[static_cast<size_t>(server)]; }

  /// Of the variables that a server carries.
  size_t bytes(int server) const;

  /// For people: a line for each server with its bytes and what it holds, long lists cut short:
  ///   server 0: 1.3 MiB in 3 variables: conv1.weight, conv1.bias, fc1.weight[0:31232]
  std::string to_string() const;

 private:
  const PlacementKind kind_;
  std::vector<FlatLayout> layouts_;  // of each server
};

}  // namespace muster::detail
