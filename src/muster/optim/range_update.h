#pragma once

// The arithmetic of one range of a layout: sums of gradients, norms, and the update rule, over flat buffers.
// Without state of its own between calls: whoever has claimed a range can do it, in any process that sees the
// buffers.

#include <array>
#include <cstddef>
#include <span>

#include "muster/optim/flat_layout.h"
#include "muster/optim/gradients.h"
#include "muster/optim/update_rule.h"

namespace muster::detail {

/// Flat memory, as the layout says; `sums` and `master` are null where nothing needs them.
struct ModelBuffers {
  std::byte* parameters = nullptr;
  std::byte* master = nullptr;  ///< of 16-bit parameters, in float32
  std::byte* sums = nullptr;    ///< of gradients
  std::array<std::byte*, kMostStates> states = {};
};

class RangeUpdate {
 public:
  using Range = FlatLayout::Range;

  /// All of it outlives this.
  RangeUpdate(const FlatLayout& layout, const UpdateRule& rule, const ModelBuffers& buffers);

  /// The masters become what the parameters are; nothing where there are none.
  void adopt_parameters(const Range& range) const;

  /// sums = the weighted sum of the sources, each the gradient of the range's whole slice. `accumulated`: what
  /// the sums hold is the first of them.
  void reduce(const Range& range, std::span<const WeightedSource> sources, bool accumulated = false) const;

  /// The sum of the squares of `sums`.
  double square(const Range& range) const;

  Norms measure(const Range& range, const UpdateNow& now) const;

  /// Whether `sums` has neither infinite elements nor any that are not a number; and whether a gradient of the
  /// range's slice has none there.
  bool is_finite(const Range& range) const;
  bool is_finite(const Range& range, const void* gradient) const;

  /// Updates the parameter with `sums`.
  void apply(const Range& range, const UpdateNow& now, const Norms& norms) const;

  /// reduce and apply in one pass, without writing `sums`. Gives whether the sum was finite.
  bool reduce_and_apply(const Range& range, std::span<const WeightedSource> sources, const UpdateNow& now,
                        bool accumulated = false) const;

 private:
  void add_up_sources(const Range& range, std::span<const WeightedSource> sources, bool accumulated,
                      void* sum) const;
  bool update(const Range& range, const void* gradient, const UpdateNow& now, const Norms& norms) const;
  UpdateRange range_of(const Range& range, const void* gradient) const;
  std::byte* sum_of(const Range& range) const;

  const FlatLayout& layout_;
  const UpdateRule& rule_;
  const ModelBuffers& buffers_;
};

}  // namespace muster::detail
