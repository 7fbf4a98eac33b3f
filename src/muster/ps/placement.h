#pragma once

// Which server holds what. Variables are spread over the servers whole, or cut into slices; a pure value: the
// same variables give the same placement on every task.
//
//   round-robin   variable i goes to server i mod n, as tf.train.replica_device_setter did
//   balanced      the largest first, each to the server that has the fewest bytes so far
//   sliced        all variables in a row are cut into n equal parts, so that servers carry equal bytes
//
//   Placement placement(variables, 2, PlacementKind::kSliced);
//   for (const Slice& slice : placement.slices(/*server=*/1)) ...
//
// A server keeps its slices in one flat array of floats, each at its `offset`, aligned to 64 bytes.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "muster/optim/update_rule.h"

namespace muster::detail {

/// A named tensor of float32 that servers hold.
struct Variable {
  std::string name;
  std::vector<int64_t> shape;
  GroupRates group;

  size_t count() const;           ///< elements
  std::string to_string() const;  ///< "fc1.weight [128, 512]"
  bool operator==(const Variable&) const = default;
};

enum class PlacementKind { kRoundRobin, kBalanced, kSliced };

/// "round-robin", "balanced" or "sliced". Throws InvalidArgument.
PlacementKind parse_placement(const std::string& text);
const char* to_string(PlacementKind kind);

/// A part of one variable on one server, in elements.
struct Slice {
  size_t variable = 0;
  size_t begin = 0;  ///< in the variable
  size_t count = 0;
  size_t offset = 0;  ///< in the server's memory
  bool operator==(const Slice&) const = default;
};

class Placement {
 public:
  /// Throws InvalidArgument for fewer than one server, and for a negative size in a shape.
  Placement(std::vector<Variable> variables, int servers, PlacementKind kind);

  const std::vector<Variable>& variables() const { return variables_; }
  int servers() const { return static_cast<int>(slices_.size()); }
  PlacementKind kind() const { return kind_; }

  /// In the order of the variables; a variable has at most one slice on a server, and none if it has no
  /// elements.
  const std::vector<Slice>& slices(int server) const { return slices_[static_cast<size_t>(server)]; }

  /// Elements that a server's memory has, with the gaps for alignment; and bytes of variables that it
  /// carries.
  size_t extent(int server) const;
  size_t bytes(int server) const;

  /// For people: a line for each server with its bytes and what it holds, long lists cut short:
  ///   server 0: 1.3 MiB in 3 variables: conv1.weight, conv1.bias, fc1.weight[0:31232]
  std::string to_string() const;

 private:
  void cut(const std::vector<size_t>& counts);
  void add(size_t server, Slice slice);

  std::vector<Variable> variables_;
  PlacementKind kind_;
  std::vector<std::vector<Slice>> slices_;
};

}  // namespace muster::detail
