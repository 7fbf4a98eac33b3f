#pragma once

// The parameters of one server where its workers see them, and their updates.
//
//   store.announce(7);          // whoever begins to read now waits for version 7
//   ...                         // wait for those who read an older one: readers.h
//   store.begin(7);             // whoever still reads an older one reads again
//   store.apply(command, contributions, wake_workers);
//
// Gradients are used by the model's rule. Where workers go on by themselves between two averages (ps-local)
// the servers have no gradients, but how far each worker has come: these are averaged, with states of their
// own.
//
// One thread uses it; the threads that update work for it meanwhile, and workers read through the view.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "muster/optim/shard_update.h"
#include "muster/ps/model_spec.h"
#include "muster/ps/policy/update_policy.h"
#include "muster/ps/store_view.h"
#include "muster/shm/arena.h"
#include "muster/shm/thread_pool.h"

namespace muster::detail {

class Store {
 public:
  /// A gradient of a command, or what one accumulates.
  struct Contribution {
    ShardUpdate::Source source;
    int worker = 0;
  };

  /// The layout outlives this. `add_up_shards` is of ShardUpdate::Options.
  Store(const ModelSpec& spec, const FlatLayout& layout,
        std::function<void(std::span<double>)> add_up_shards);

  const StoreView& view() const { return view_; }
  const Arena& arena() const { return *arena_; }

  /// Whether updates need norms over all shards.
  bool needs_norms() const { return gradients_ && gradients_->in_passes(); }

  /// The last that was applied.
  int64_t version() const { return version_; }

  void initialise(const ShardUpdate::SliceData& parameters) { current_->initialise(parameters); }
  void accumulate(const Command& command, const Contribution& contribution);

  /// Throws DataLoss when it is not the next version.
  void announce(int64_t version);
  void begin(int64_t version) { view_.begun().exchange(version); }

  /// `changed` is called when another chunk can be read, from any thread that updates. Throws DataLoss for a
  /// sum that is not finite, with whose gradient it was.
  void apply(const Command& command, const std::vector<Contribution>& contributions,
             const std::function<void()>& changed);

 private:
  ShardUpdate& update_by(const Command& command);
  [[noreturn]] void raise_not_finite(const Command& command, const std::vector<Contribution>& contributions,
                                     size_t slice) const;

  const FlatLayout& layout_;
  const std::shared_ptr<Arena> arena_;  // workers only read it
  StoreView view_;
  ThreadPool pool_;
  const FlatLayout plain_;  // without rates of groups, which the workers' own updates have seen to
  std::optional<ShardUpdate> gradients_;  // where a phase of the policy brings gradients
  std::optional<ShardUpdate> averages_;   // where one is ps-local
  ShardUpdate* current_ = nullptr;        // the last that has changed the parameters
  ShardUpdate::Update update_;            // the last
  int64_t version_ = 0;
  int not_finite_of_ = -1;  // the worker whose gradient was not, if it was accumulated
};

}  // namespace muster::detail
