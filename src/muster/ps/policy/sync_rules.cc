#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "muster/base/log.h"
#include "muster/ps/policy/mode_rules.h"

namespace muster::detail {
namespace {

class SyncRules final : public ModeRules {
 public:
  SyncRules(PolicyState& state, const PhaseSpan& span)
      : state_(state), span_(span), workers_(state.options.workers) {
    const PolicyOptions& options = state.options;
    const bool sync = span.mode == Mode::kSync;
    if (sync && options.aggregate > 0) aggregate_ = options.aggregate;
    tokens_ = sync && options.init_tokens > 0 ? options.init_tokens : std::max(workers_, aggregate_);
  }

  void receive(int worker, const Push& push) override {
    if (push.step < state_.step) return state_.drop(worker, push, Answer::Outcome::kDropped);
    gradients_.push_back({worker, push, /*taken=*/push.skip});
    if (push.skip) return state_.drop(worker, push, Answer::Outcome::kSkipped);
    // Of an update that is yet to come, unless the worker waits for it.
    state_.worker(worker).next_answer = {
        .outcome = Answer::Outcome::kApplied, .loss = push.loss, .total = push.total};
  }

  void settle() override {
    if (count() >= needed(state_.active() + state_.expected())) update();
    for (int worker = 0; worker < workers_; ++worker) {
      if (!state_.worker(worker).living()) release(worker);
    }
  }

  // Those who have no gradient here come first.
  bool may_begin(int worker) const override {
    int free = tokens() - held() - count();
    for (int other = 0; other < workers_ && has_gradient(worker); ++other) {
      const auto status = state_.worker(other).status;
      const bool comes = status == WorkerState::Status::kWaiting || status == WorkerState::Status::kBack;
      if (comes && !has_gradient(other)) --free;
    }
    return free > 0;
  }

  UpdatePolicy::Need need(int worker) const override {
    UpdatePolicy::Need need = {.what = "a gradient",
                               .enough = std::max(1, needed(state_.active() + state_.expected()) - count())};
    for (int other = 0; other < workers_; ++other) {
      const WorkerState& state = state_.worker(other);
      const bool comes =
          state.status == WorkerState::Status::kComputing || state.status == WorkerState::Status::kBack;
      if (other != worker && (state.expected || comes)) need.of.push_back(other);
    }
    return need;
  }

  void release(int worker) override {
    std::vector<GradientSource> sources;
    for (Gradient& gradient : gradients_) {
      if (gradient.worker != worker || gradient.taken) continue;
      sources.push_back(source_of(worker, gradient.push));
      gradient.taken = true;
    }
    if (!sources.empty()) state_.add_command(Command::Kind::kAccumulate, sources).averages = averages();
  }

  int64_t gathered(int worker) const override {
    return std::ranges::count_if(gradients_, [worker](const Gradient& gradient) {
      return gradient.worker == worker && !gradient.push.skip;
    });
  }

  int needed(int workers) const override {
    return aggregate_ > workers_ ? aggregate_ : std::max(1, std::min(aggregate_, workers));
  }

 private:
  struct Gradient {
    int worker = 0;
    Push push;
    bool taken = false;  ///< by a command: accumulated, or dropped since it is to be skipped
  };

  // What the gradients of a step come to.
  struct Sums {
    double total = 0;
    double loss = 0;      // times total
    int64_t advance = 1;  // of the one that went farthest
  };

  bool averages() const { return span_.mode == Mode::kLocal; }
  int count() const { return static_cast<int>(gradients_.size()); }

  GradientSource source_of(int worker, const Push& push) {
    if (!unit_) unit_ = push.weight;
    return state_.source(worker, push, *unit_);
  }

  bool has_gradient(int worker) const {
    return std::ranges::count(gradients_, worker, &Gradient::worker) > 0;
  }

  // Of this step: how many workers hold one, and how many there may be in all. Where one gradient of each
  // worker makes an update, that of a worker which is not active is kept for it: a gradient more from another
  // would come too late.
  int held() const {
    return static_cast<int>(std::ranges::count(
        state_.workers, state_.step, [](const WorkerState& worker) { return worker.token.value_or(-1); }));
  }
  int tokens() const {
    if (aggregate_ > workers_) return tokens_;
    return std::max(needed(state_.active()), tokens_ - (workers_ - state_.active()));
  }

  void update() {
    std::ranges::stable_sort(gradients_, {}, [](const Gradient& gradient) {
      return std::tuple(gradient.worker, gradient.push.sequence);
    });
    const Sums sums = add_up();
    say_who_is_away();
    state_.step += std::min(span_.end - state_.step, averages() ? sums.advance : 1);
    if (sums.total > 0) {
      apply(sums);
    } else {
      state_.add_command(Command::Kind::kDrop, {});
    }
    gradients_.clear();
    unit_.reset();
    tokens_ = std::max(workers_, aggregate_);
  }

  // Once for each time that somebody is away.
  void say_who_is_away() {
    const auto away = std::ranges::find(state_.workers, WorkerState::Status::kAway, &WorkerState::status);
    const bool anybody = away != state_.workers.end();
    if (std::exchange(somebody_is_away_, anybody) || !anybody) return;
    log_info("worker/{} waits for others elsewhere: averaging {} gradient{} without it",
             away - state_.workers.begin(), count(), count() == 1 ? "" : "s");
  }

  Sums add_up() const {
    Sums sums;
    for (const auto& [worker, push, taken] : gradients_) {
      sums.advance = std::max(sums.advance, push.advance);
      if (push.skip) continue;
      sums.total += push.total;
      sums.loss += push.loss * push.total;
    }
    return sums;
  }

  void apply(const Sums& sums) {
    std::vector<GradientSource> sources;
    constexpr double kSameRate = 1e-6;  // hosts may have other mathematical libraries
    const Push* first = nullptr;
    int first_worker = 0;
    for (const auto& [worker, push, taken] : gradients_) {
      if (push.skip) continue;
      if (first == nullptr) {
        first = &push;
        first_worker = worker;
      }
      if (!averages() && std::abs(push.lr - first->lr) > kSameRate * std::abs(first->lr) &&
          !std::exchange(warned_of_rates_, true))
        log_warning(
            "the learning rates that workers give for update {} differ, {} of worker/{} and {} of worker/{}, "
            "which counts: change it on all workers, in the same step",
            state_.version + 1, push.lr, worker, first->lr, first_worker);
      ++state_.counts[worker].applied;
      if (taken) continue;
      sources.push_back(source_of(worker, push));
      state_.worker(worker).next_answer = {.outcome = Answer::Outcome::kApplied,
                                           .staleness = state_.version - push.version,
                                           .loss = sums.loss / sums.total,
                                           .total = sums.total};
    }
    ++state_.version;
    Command& command = state_.add_command(Command::Kind::kApply, std::move(sources));
    command.divisor = sums.total / *unit_;
    command.lr = first->lr;
    command.gradient_scale = first->gradient_scale;
    command.averages = averages();
  }

  PolicyState& state_;
  bool somebody_is_away_ = false;  // as of the last update
  const PhaseSpan span_;
  const int workers_;
  int aggregate_ = workers_;
  // What weights are counted in: that of the first gradient that is added up for this step. It is the first
  // of the workers' own order, not the first to come: in every run the same sums are rounded.
  std::optional<double> unit_;
  int tokens_ = 0;  // that carry this step
  bool warned_of_rates_ = false;
  std::vector<Gradient> gradients_;  // for this step
};

}  // namespace

std::unique_ptr<ModeRules> sync_rules(PolicyState& state, const PhaseSpan& span) {
  return std::make_unique<SyncRules>(state, span);
}

}  // namespace muster::detail
