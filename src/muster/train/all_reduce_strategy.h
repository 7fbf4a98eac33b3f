#pragma once

// Training by all-reduce: the average of all workers' gradients, without a centre.
//
// Inside a host the parameters and the optimizer's state exist once, in shared memory. When the gradients of
// a parameter have been delivered by all workers, whoever is free takes a chunk of it, reads the gradients
// where autograd wrote them, adds them up in the order of the workers, and updates the parameter in the same
// pass. So nothing is gathered, nothing is updated twice, and a worker that is done early works for one that
// is late; and the bits do not depend on who did what. Between hosts, the sums go into a flat buffer, and the
// reducer thread (reducer_thread.h) adds up its buckets with those of the other hosts while backward goes on;
// then each host updates its own copy. Where workers share no memory, each is a host of its own.
//
// Passes of a step: reduce, then between hosts, then the norm of the gradient, the rule's measure, apply;
// those that are not needed are left out, and on one host reduce and apply are one.
//
// Threads, blocking and errors are as strategy.h says. The communicator and the gradients' memory outlive it.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/wait_registry.h"
#include "muster/communicator.h"
#include "muster/deadline.h"
#include "muster/optim/range_update.h"
#include "muster/optim/update_rule.h"
#include "muster/train/buckets.h"
#include "muster/train/reducer_thread.h"
#include "muster/train/shared_step.h"
#include "muster/train/strategy.h"

namespace muster::detail {

class AllReduceStrategy : public Strategy {
 public:
  struct Options {
    Communicator& communicator;             ///< of all workers; outlives this
    std::vector<ParameterInfo> parameters;  ///< the same on all workers, in the same order
    UpdateRulePtr rule;
    bool check_finite = false;  ///< keep the parameters when a gradient is infinite or not a number
    double clip_norm = 0;       ///< of the averaged gradient; 0: none
    size_t bucket_bytes = 0;    ///< 0: measured
    int hosts = 0;  ///< that the workers are on, for explain(); 0: as many as there are that share memory
    std::chrono::milliseconds timeout{std::chrono::minutes(10)};  ///< for the other workers, in each step
    std::chrono::milliseconds stall_warning{std::chrono::seconds(10)};
    std::function<std::string(int rank)> describe;  ///< "worker 2 (host b, pid 4711)"
    WaitRegistry* waits = nullptr;  ///< where workers that are waited for are told of; outlives this
    std::string name = {};          ///< of the model there, the same on all workers
    std::function<std::string(int rank)> task_of = {};  ///< "worker/2"
  };

  /// Called by all workers.
  explicit AllReduceStrategy(Options options);
  ~AllReduceStrategy() override;

  std::string explain() const override;

  /// Whether gradients travel by the communicator's collectives: where not all workers share memory.
  bool uses_collectives() const { return hosts_ > 1; }
  const FlatLayout& layout() const override { return layout_; }
  std::shared_ptr<std::byte> parameters() override {
    return std::static_pointer_cast<std::byte>(memory_.front());
  }
  std::byte* state(size_t state) override { return buffers_.states[state]; }
  bool initialises() const override { return host_.is_first(); }
  int64_t updates(size_t parameter) const override { return updates_[parameter]; }
  void set_updates(size_t parameter, int64_t updates) override { updates_[parameter] = updates; }
  void adopt_parameters() override;
  bool keeps_changes() const override { return communicator_.size() == 1; }

  void begin(const StepStart& start) override;
  void deliver(size_t parameter, const void* gradient, bool held) override;
  StepResult finish(double loss) override;

 private:
  enum Pass : size_t { kReduce, kNorm, kMeasure, kApply };

  void find_hosts();
  void allocate();
  std::byte* share(size_t bytes);

  using Range = FlatLayout::Range;

  bool ready(size_t chunk);
  void note_reduced(size_t chunk);
  void reduce(const Range& range);
  void find_not_finite(const Range& range);
  std::string describe_not_finite(const SharedStep::Control& control) const;
  void reduce_and_apply(const Range& range);
  SharedStep::RangeNorms& norms_of(const Range& range);
  std::vector<WeightedSource> sources_of(size_t parameter) const;
  UpdateNow now_of(size_t parameter) const;

  // All chunks of a pass, shared with the host's other workers.
  template <typename Work>
  void run_pass(Pass pass, const Work& work);
  template <typename Work>
  bool claim_chunk(Pass pass, const Work& work);
  uint64_t end_of(Pass pass) const;

  SharedStep::Control gather_control();
  void agree_on_change(const SharedStep::Control& control) const;
  void find_norm(StepResult& result);
  bool touched(size_t parameter);

  template <typename Ready>
  void wait(const Ready& is_ready);
  void check_waiting(Deadline::Clock::time_point since, const std::vector<int>& ranks,
                     const std::string& who);
  void log_last_collectives();
  std::string who_is_missing(std::vector<int>* ranks) const;

  const Options options_;
  Communicator& communicator_;
  SharedHost& host_;
  const SpinPolicy spin_policy_;
  int hosts_ = 1;
  std::unique_ptr<Communicator> between_;  // until the reducer thread takes it
  const FlatLayout layout_;
  std::optional<Buckets> buckets_;
  std::vector<std::shared_ptr<void>> memory_;
  ModelBuffers buffers_;
  std::optional<RangeUpdate> update_;
  std::optional<SharedStep> shared_;
  std::unique_ptr<ReducerThread> reducer_;      // on the first worker of a host, when there are several
  std::vector<std::shared_ptr<void>> staging_;  // buffers for gradients in memory that the others can't reach
  std::vector<int64_t> updates_;

  // Of the current round.
  uint64_t round_ = 0;
  int64_t step_ = 0;          // rounds in which somebody brought something
  int64_t logged_step_ = -1;  // the last that took long enough to log what went before
  StepStart start_;
  double scale_ = 1;
  double lr_ = 0;
  size_t settled_ = 0;  // parameters up to here are known to be delivered by all
  std::array<uint64_t, SharedStep::kPasses> uses_{};
  std::vector<Norms> norms_;  // of each parameter
  std::chrono::duration<double> waited_{0};
  std::chrono::duration<double> worked_{0};
};

}  // namespace muster::detail
