#pragma once

// Sizes and offsets that have to be multiples of something.

#include <cstddef>

namespace muster::detail {

/// The least multiple of `unit` that is not less than `value`. `unit` is not 0.
constexpr size_t round_up(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace muster::detail
