#pragma once

// The arithmetic of one chunk: sums of the workers' gradients, norms, and the update rule, over the buffers
// of a layout. Without state of its own between calls: whoever has claimed a chunk can do it.

#include <array>
#include <span>
#include <vector>

#include "muster/optim/gradients.h"
#include "muster/optim/update_rule.h"
#include "muster/train/parameter_layout.h"
#include "muster/train/shared_step.h"

namespace muster::detail {

/// The host's flat memory; `sums` and `master` are null where nothing needs them.
struct ModelBuffers {
  std::byte* parameters = nullptr;
  std::byte* master = nullptr;  // of 16-bit parameters, in float32
  std::byte* sums = nullptr;    // of gradients
  std::array<std::byte*, kMostStates> states = {};
};

class ChunkUpdate {
 public:
  using Chunk = ParameterLayout::Chunk;

  /// All of it outlives this.
  ChunkUpdate(const ParameterLayout& layout, const UpdateRule& rule, const ModelBuffers& buffers);

  /// sums = the weighted sum of the sources, each the whole gradient of the chunk's parameter.
  void reduce(const Chunk& chunk, std::span<const WeightedSource> sources) const;

  /// The sum of the squares of `sums`.
  double square(const Chunk& chunk) const;

  Norms measure(const Chunk& chunk, const UpdateNow& now) const;

  /// Whether `sums` has neither infinite elements nor any that are not a number.
  bool is_finite(const Chunk& chunk) const;

  /// Updates the parameter with `sums`.
  void apply(const Chunk& chunk, const UpdateNow& now, const Norms& norms) const;

  /// reduce and apply in one pass, without `sums`. Gives whether the sum was finite.
  bool reduce_and_apply(const Chunk& chunk, std::span<const WeightedSource> sources,
                        const UpdateNow& now) const;

 private:
  UpdateRange range_of(const Chunk& chunk, const void* gradient) const;
  bool apply_range(const Chunk& chunk, const void* gradient, const UpdateNow& now, const Norms& norms) const;
  void add_up_piece(const Chunk& chunk, std::span<const WeightedSource> sources, void* sum) const;
  std::byte* sum_of(const Chunk& chunk) const;

  const ParameterLayout& layout_;
  const UpdateRule& rule_;
  const ModelBuffers& buffers_;
};

}  // namespace muster::detail
