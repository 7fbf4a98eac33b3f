#pragma once

// What one server holds: its slices of all variables, the optimizer's state for them, and the sums of
// gradients that wait for an update.
//
//   ParameterStore store({.placement = placement, .server = 0, .rule = sgd({.lr = 0.1})}, view);
//   store.initialise(parameters);
//   store.apply({.sources = {{&gradients, 1.0}}, .lr = 0.1, .version = 1}, [](size_t chunk) { ... });
//
// The parameters lie in the StoreView's memory, where workers read them. Not thread-safe: one thread works on
// it, with a pool of others inside a call.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "muster/net/thread_pool.h"
#include "muster/optim/gradients.h"
#include "muster/optim/update_rule.h"
#include "muster/ps/placement.h"
#include "muster/ps/store_view.h"

namespace muster::detail {

/// A gradient, or parameters, as a worker has them: for each slice of the server, or nullptr.
using SliceData = std::vector<const float*>;

class ParameterStore {
 public:
  struct Options {
    const Placement& placement;
    int server = 0;
    UpdateRulePtr rule;
    double clip_norm = 0;       ///< of the averaged gradient of this server; 0: none
    bool check_finite = false;  ///< apply() throws DataLoss when a gradient was not
    int threads = 1;
  };

  /// Both outlive this.
  ParameterStore(const Options& options, StoreView& view);

  struct WeightedData {
    const SliceData* data = nullptr;
    double weight = 1;
    int worker = 0;  ///< whose it is
  };

  struct Update {
    std::vector<WeightedData> sources;  ///< in the order in which they are added
    double divisor = 1;
    double lr = 0;
    double gradient_scale = 1;
    int64_t version = 0;   ///< that it makes
    int asynchronous = 1;  ///< workers whose gradients are used one by one
  };

  void initialise(const SliceData& parameters);

  /// Adds it to the sums that the next update uses.
  void accumulate(const WeightedData& source);

  /// Averages and updates. `done` is called when a chunk has the new version, by any thread of the pool.
  /// Variables for which nobody has a gradient stay as they are.
  /// With check_finite it throws afterwards, when it is known: what is then there is of no use.
  void apply(const Update& update, const std::function<void(size_t chunk)>& done);

  /// For checkpoints: the state of the update rule, as the parameters lie in the view (`index` below the
  /// rule's states()), and how often each slice has been updated.
  float* state(size_t index) { return state_[index].get(); }
  std::vector<int64_t>& updates() { return updates_; }

 private:
  using Range = StoreView::Range;
  using Chunk = StoreView::Chunk;
  void collect(const Update& update, const Range& range, std::vector<WeightedSource>& sources) const;
  UpdateRange range_of(const Range& range, const float* gradient) const;
  UpdateNow now_of(const Update& update, const Range& range) const;
  void apply_at_once(const Update& update, const Chunk& chunk);
  void update_range(const Range& range, const float* gradient, const UpdateNow& now);
  [[noreturn]] void stop_at_nan(const Update& update, size_t slice);
  void add_up_chunk(const Update& update, size_t chunk);
  void measure_chunk(const Update& update, const Chunk& chunk);
  void apply_sums(const Update& update, const Chunk& chunk, const std::vector<Norms>& whole);
  void apply_in_passes(Update update, const std::function<void(size_t)>& done);
  void finish_chunk(const Update& update, size_t chunk, const std::function<void(size_t)>& done) const;
  bool touched(const Update& update, size_t slice) const;
  float* sums();

  const Options options_;
  StoreView& view_;
  const std::vector<Slice>& slices_;
  std::array<std::unique_ptr<float[]>, kMostStates> state_;
  std::unique_ptr<float[]> sums_;             // when something needs it
  std::vector<bool> accumulated_;             // slices that have something in the sums
  std::vector<int64_t> updates_;              // of each slice
  std::vector<double> squares_;               // of each chunk
  std::vector<Norms> norms_;                  // of each range
  std::atomic<size_t> not_finite_{SIZE_MAX};  // a slice whose gradient was not
  int accumulated_nan_of_ = -1;               // the worker whose it was, if it was accumulated
  ThreadPool pool_;
};

}  // namespace muster::detail
