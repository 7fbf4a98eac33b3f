#pragma once

// How many bytes values have, as far as it is known before a run: a number, or one that grows with the size
// of the batch, N.
//
//   ValueBytes::of(info).to_string();       // "N x 3.1 KiB" for a float32 tensor of [N, 784]
//   ValueBytes::of(info).to_string(64);     // "196 KiB"
//
// Pure values.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/graph/graph_node.h"

namespace muster::detail {

class ValueBytes {
 public:
  ValueBytes() = default;  ///< None.
  explicit ValueBytes(int64_t bytes) : coefficients_{bytes} {}
  static ValueBytes of(const OutputInfo& info);

  ValueBytes& operator+=(const ValueBytes& other);

  /// Of the powers of N: {12, 4} is 12 + 4 N.
  const std::vector<int64_t>& coefficients() const { return coefficients_; }
  int unknown() const { return unknown_; }  ///< How many of the values may have any size.
  double at(int64_t batch) const;           ///< Without those of unknown size.

  /// "N x 2 KiB + 40 B", or the bytes for a batch. What is unknown is shown as "?".
  std::string to_string(std::optional<int64_t> batch = {}) const;

  bool operator==(const ValueBytes&) const = default;

 private:
  std::vector<int64_t> coefficients_;
  int unknown_ = 0;
};

/// "float32 [N, 784]"; of what is no tensor, its type.
std::string describe(const OutputInfo& info);

/// As the tools print text that others wrote: what is no UTF-8, and what moves a cursor, is a question mark.
std::string printable(std::string_view text);

}  // namespace muster::detail
