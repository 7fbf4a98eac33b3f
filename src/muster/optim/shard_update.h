#pragma once

// The updates of a shard of a model, all in one process: the parameters' memory is given, the optimizer's
// states, the masters of 16-bit parameters and the sums of gradients are its own.
//
//   ShardUpdate shard({.layout = layout, .rule = rule, .parameters = memory});
//   shard.accumulate({.gradients = early, .weight = 1});                    // counts for the next update
//   shard.apply({.sources = {{.gradients = late}}, .divisor = 2, .lr = 0.1}, [](size_t chunk) { ... });
//
// Where the rule or clipping depends on norms of the whole gradient or of whole parameters, gradients are
// summed first, then measured, then applied, each in a pass over all chunks; else a chunk is summed and
// updated in one go. With several shards, norms are added up over all of them between the passes.
//
// Whoever makes it says who works on the chunks of a pass (a thread pool, or the caller alone). One thread
// calls it at a time; what it calls, it calls from there, `done` from any thread that works.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "muster/optim/flat_layout.h"
#include "muster/optim/range_update.h"
#include "muster/optim/update_rule.h"

namespace muster::detail {

class ShardUpdate {
 public:
  /// A gradient, or parameters: where each slice is, or nullptr.
  using SliceData = std::vector<const void*>;

  struct Options {
    const FlatLayout& layout;  ///< outlives this
    UpdateRulePtr rule;
    std::byte* parameters = nullptr;  ///< of the layout; outlives this
    double clip_norm = 0;             ///< of the whole averaged gradient; 0: none
    /// Does the work on each of `count` chunks, and returns when all is done.
    std::function<void(size_t count, const std::function<void(size_t)>& work)> run = run_alone;
    /// Adds up numbers over all shards, in place; empty: there is one. May throw.
    std::function<void(std::span<double> values)> add_up_shards = {};
  };

  struct Source {
    const SliceData* gradients = nullptr;
    double weight = 1;
  };

  struct Update {
    std::vector<Source> sources;  ///< in the order in which they are added
    double divisor = 1;
    double lr = 0;
    double gradient_scale = 1;
    int asynchronous = 1;  ///< workers whose gradients are used one by one
  };

  struct Result {
    double gradient_norm = 0;          ///< of the average, before clipping; 0 when nothing needed it
    std::optional<size_t> not_finite;  ///< a slice whose sum was infinite or not a number
  };

  explicit ShardUpdate(const Options& options);

  static void run_alone(size_t count, const std::function<void(size_t)>& work);

  const FlatLayout& layout() const { return options_.layout; }

  /// Whether an update needs norms first.
  bool in_passes() const { return options_.clip_norm > 0 || options_.rule->measures(); }

  /// Copies these into the parameters, and the masters follow; adopt_parameters() after they were changed.
  void initialise(const SliceData& parameters);
  void adopt_parameters();

  /// Adds it to the sums that the next update uses. Gives whether it was finite.
  bool accumulate(const Source& source);

  /// Averages and updates; slices for which nobody has a gradient stay as they are. `done` is called when a
  /// chunk is. When a sum is not finite, that is in the result; an update in passes then changes nothing of
  /// this shard, the other is of no use any more.
  Result apply(const Update& update, const std::function<void(size_t chunk)>& done = {});

  /// A slice as it is updated: in its state's type.
  const std::byte* values(size_t slice) const;

  /// The states of the update rule, of the layout's state_bytes(), and how often each slice has been updated.
  std::byte* state(size_t index) { return buffers_.states[index]; }
  const std::vector<int64_t>& updates() const { return updates_; }
  void set_updates(size_t slice, int64_t updates) { updates_[slice] = updates; }

 private:
  using Range = FlatLayout::Range;

  std::byte* own(size_t bytes);
  void need_sums();
  bool touched(const Update& update, size_t slice) const;
  UpdateNow now_of(const Update& update, size_t slice) const;
  template <typename Work>
  void for_each_range(const Update& update, const std::function<void(size_t)>& done, const Work& work);
  void apply_at_once(const Update& update, const std::function<void(size_t)>& done);
  Result apply_in_passes(const Update& update, const std::function<void(size_t)>& done);
  std::vector<Norms> measure(const Update& update);

  const Options options_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  ModelBuffers buffers_;
  const RangeUpdate ranges_;
  std::vector<bool> accumulated_;             // slices that have something in the sums
  std::vector<int64_t> updates_;              // of each slice
  double gradient_scale_ = 1;                 // of the sums, in this update
  std::atomic<size_t> not_finite_{SIZE_MAX};  // a slice whose gradient was not
};

}  // namespace muster::detail
