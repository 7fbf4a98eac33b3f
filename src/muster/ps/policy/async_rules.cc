#include <algorithm>
#include <map>

#include "muster/ps/policy/mode_rules.h"

namespace muster::detail {
namespace {

class AsyncRules final : public ModeRules {
 public:
  // Also for those who are still to come: the others must not be too far ahead of them.
  AsyncRules(PolicyState& state, const PhaseSpan& span) : state_(state), span_(span) {
    for (int worker = 0; worker < state.options.workers; ++worker) {
      if (state.worker(worker).active() || state.worker(worker).expected) activated(worker);
    }
  }

  void receive(int worker, const Push& push) override {
    if (push.step < span_.from) return state_.drop(worker, push, Answer::Outcome::kDropped);
    ++clocks_[worker];
    if (push.skip) return state_.drop(worker, push, Answer::Outcome::kSkipped);
    const int64_t staleness = state_.version - push.version;
    ++state_.counts[worker].staleness[staleness];
    const PolicyOptions& options = state_.options;
    const bool too_stale = options.max_staleness >= 0 && staleness > options.max_staleness;
    if (too_stale && !options.staleness_damping) {
      return state_.drop(worker, push, Answer::Outcome::kDropped);
    }
    const bool damped =
        options.staleness_damping && staleness > 1 && (too_stale || options.max_staleness < 0);
    apply(worker, push, damped ? push.lr / static_cast<double>(staleness) : push.lr);
  }

  // One that comes again begins beside the slowest: it must not hold the others up.
  void activated(int worker) override { clocks_.try_emplace(worker, slowest()); }
  void deactivated(int worker) override { clocks_.erase(worker); }

  bool may_begin(int worker) const override {
    if (outstanding() >= span_.end - state_.step) return false;
    return span_.mode != Mode::kSsp || clocks_.at(worker) - slowest() <= state_.options.staleness;
  }

  // Those who are too far behind; else one of those who hold the last tokens, since it may give its back.
  UpdatePolicy::Need need(int worker) const override {
    UpdatePolicy::Need need = {.what = "a gradient"};
    for (const auto& [other, clock] : clocks_) {
      if (span_.mode == Mode::kSsp && clock < clocks_.at(worker) - state_.options.staleness)
        need.of.push_back(other);
    }
    if (!need.of.empty()) return need;
    need.enough = 1;
    for (int other = 0; other < state_.options.workers; ++other) {
      if (state_.worker(other).token.value_or(-1) >= span_.from) need.of.push_back(other);
    }
    return need;
  }

 private:
  void apply(int worker, const Push& push, double lr) {
    state_.worker(worker).next_answer = {.outcome = Answer::Outcome::kApplied,
                                         .staleness = state_.version - push.version,
                                         .loss = push.loss,
                                         .total = push.total};
    ++state_.counts[worker].applied;
    ++state_.version;
    ++state_.step;
    Command& command = state_.add_command(Command::Kind::kApply, {state_.source(worker, push, push.weight)});
    command.divisor = push.total / push.weight;
    command.lr = lr;
    command.gradient_scale = push.gradient_scale;
    command.asynchronous = std::max(1, state_.active());
  }

  // Tokens of this phase that workers hold: as many gradients are still to come.
  int64_t outstanding() const {
    return std::ranges::count_if(state_.workers, [this](const WorkerState& worker) {
      return worker.token.has_value() && *worker.token >= span_.from;
    });
  }

  int64_t slowest() const {
    const auto least = std::ranges::min_element(clocks_, {}, &std::pair<const int, int64_t>::second);
    return least == clocks_.end() ? 0 : least->second;
  }

  PolicyState& state_;
  const PhaseSpan span_;
  std::map<int, int64_t> clocks_;  // of active and expected workers: the gradients that they have pushed
};

}  // namespace

std::unique_ptr<ModeRules> async_rules(PolicyState& state, const PhaseSpan& span) {
  return std::make_unique<AsyncRules>(state, span);
}

}  // namespace muster::detail
