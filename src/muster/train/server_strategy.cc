#include "muster/train/server_strategy.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "muster/base/align.h"
#include "muster/base/dtype.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/optim/gradients.h"

namespace muster::detail {
namespace {

using Clock = Deadline::Clock;

std::string describe(const PolicyOptions& policy) {
  std::string text;
  for (const auto& phase : policy.phases) {
    if (!text.empty()) text += fmt::format(", from step {} ", phase.from);
    text += to_string(phase.mode);
    if (phase.mode == Mode::kSync && policy.aggregate > 0)
      text += fmt::format(" of {} gradients", policy.aggregate);
    if (phase.mode == Mode::kSsp) text += fmt::format(" with a staleness of up to {}", policy.staleness);
  }
  return text;
}

}  // namespace

template <typename Call>
void ServerStrategy::with_servers(const Call& call) {
  broken_ = true;
  call();
  broken_ = false;
}

template <typename Call>
Reply ServerStrategy::ask(const Call& call) {
  with_servers([&] { reply_ = call(); });
  return reply_;
}

ServerStrategy::ServerStrategy(Options options) : options_(std::move(options)), layout_(options_.parameters) {
  check_hogwild();
  const auto& phases = options_.spec.policy.phases;
  const bool has_local = std::ranges::count(phases, Mode::kLocal, &Phase::mode) > 0;
  is_exclusive_ = options_.client.parameters() != nullptr &&
                  std::ranges::all_of(phases, [](const Phase& phase) { return phase.mode == Mode::kSync; });
  ask([this] { return options_.client.enter(); });
  if (reads_in_place()) {
    memory_ = std::const_pointer_cast<std::byte>(options_.client.parameters());
    constexpr size_t kPage = 4096;
    trap_.emplace(memory_.get(), round_up(layout_.bytes(), kPage));
  } else {
    memory_ = std::static_pointer_cast<std::byte>(options_.client.allocate(layout_.bytes()));
  }
  for (size_t i = 0; i < layout_.size(); ++i) variables_.push_back(memory_.get() + layout_.offset(i));
  if (has_local) {
    local_.emplace(
        LocalSteps::Options{.layout = layout_,
                            .rule = options_.rule,
                            .parameters = memory_.get(),
                            .clip_norm = options_.clip_norm,
                            .allocate = [this](size_t bytes) { return options_.client.allocate(bytes); }});
  }
  pull();
}

// Whatever has gone wrong, the servers notice it otherwise.
ServerStrategy::~ServerStrategy() {
  if (broken_) return;
  if (local_count() > 0 && std::uncaught_exceptions() == 0)
    log_warning(
        "worker/{} ends with {} steps after the last average, which are lost: call finish_epoch() after "
        "the loop",
        options_.worker, local_count());
  try {
    options_.client.leave();
  } catch (const std::exception& error) {
    log_debug("this worker could not take its leave from the parameter servers: {}", error.what());
  }
}

void ServerStrategy::check_hogwild() const {
  if (!options_.hogwild) return;
  if (options_.client.parameters() == nullptr)
    throw InvalidArgument(
        "--hogwild needs one parameter server, on the host of the workers, and the memory that they share: "
        "it "
        "is not for several servers or hosts, nor for --shared-memory off");
  if (std::ranges::count(options_.spec.policy.phases, Mode::kLocal, &Phase::mode) > 0)
    throw InvalidArgument("--hogwild is not for ps-local, whose workers each update a copy of their own");
}

size_t ServerStrategy::sampled(size_t parameter) const {
  constexpr size_t kStride = 7919;  // a prime, so that it comes to all elements
  return samples_taken_ * kStride % layout_[parameter].count();
}

// What somebody writes into a copy has no effect, and no trap.
void ServerStrategy::take_samples() {
  samples_.clear();
  if (is_local() || reads_in_place()) return;
  ++samples_taken_;
  samples_.resize(layout_.size());
  for (size_t i = 0; i < layout_.size(); ++i) {
    if (layout_[i].count() > 0) samples_[i] = sample(i);
  }
}

// The bits of an element, which is another one each time.
uint64_t ServerStrategy::sample(size_t parameter) const {
  const size_t bytes = size_of(layout_[parameter].dtype);
  uint64_t bits = 0;
  std::memcpy(&bits, static_cast<const std::byte*>(variables_[parameter]) + sampled(parameter) * bytes,
              bytes);
  return bits;
}

std::optional<size_t> ServerStrategy::written() const {
  for (size_t i = 0; i < samples_.size(); ++i) {
    if (layout_[i].count() > 0 && samples_[i] != sample(i)) return i;
  }
  if (!trap_ || trap_->first_write() == nullptr) return std::nullopt;
  const auto at = static_cast<size_t>(trap_->first_write() - memory_.get());
  size_t parameter = 0;
  while (parameter + 1 < layout_.size() && layout_.offset(parameter + 1) <= at) ++parameter;
  return parameter;
}

std::string ServerStrategy::explain() const {
  std::string text =
      fmt::format("{}: {} workers, {} server{}", describe(options_.spec.policy), options_.spec.policy.workers,
                  options_.spec.servers, options_.spec.servers == 1 ? "" : "s");
  if (local_) text += fmt::format(", averages every {} steps", options_.sync_every);
  if (options_.hogwild) text += ", parameters read in place";
  return text;
}

void ServerStrategy::pull() {
  version_ = reply_.version;
  with_servers([this] {
    if (is_exclusive_) {
      options_.client.wait_version(version_);
    } else if (!options_.hogwild) {
      version_ = options_.client.pull(version_, variables_);
    } else {
      options_.client.wait_consumed();
    }
  });
  if (is_local()) local_->anchor();
  take_samples();
}

void ServerStrategy::refresh() {
  if (local_count() > 0 && options_.spec.policy.workers > 1 && !std::exchange(warned_of_own_, true))
    log_warning(
        "worker/{} evaluates its own parameters, {} steps after the last average: each worker's differ, and "
        "the sums are of all of them; call finish_epoch() before evaluate()",
        options_.worker, local_count());
  if (is_local() || reads_in_place()) return;
  with_servers([this] { version_ = options_.client.pull(reply_.version, variables_); });
  take_samples();
}

// In the middle of a step it can't give its token back: it goes on to compute with these parameters.
void ServerStrategy::away() {
  if (done() || broken_ || paused_ || in_step_) return;
  with_servers([this] { options_.client.away(); });
  away_ = true;
}

void ServerStrategy::back() {
  if (away_) with_servers([this] { options_.client.back(); });
}

void ServerStrategy::go_on() {
  if (!std::exchange(away_, false)) return;
  ask([this] { return options_.client.resume(); });
  if (!is_local()) drop_local_steps();
  if (local_count() == 0) pull();
}

void ServerStrategy::pause() {
  if (done()) return;
  with_servers([this] { options_.client.post_finish_epoch(); });
  paused_ = true;
}

// Local steps that were not sent yet are kept: they go on from where they are.
void ServerStrategy::resume() {
  if (!std::exchange(paused_, false)) return;
  ask([this] { return options_.client.wait_next_epoch(); });
  if (!is_local()) drop_local_steps();
  if (local_count() == 0) pull();
}

// The mode has changed while this worker was elsewhere.
void ServerStrategy::drop_local_steps() {
  if (local_count() == 0) return;
  log_warning(
      "worker/{} has taken {} steps after the last average, which are lost: the others went on without it "
      "to {} (--switch)",
      options_.worker, local_count(), to_string(reply_.mode));
  local_->forget();
}

// The leader counts; of local steps that were not sent yet, the other workers have taken as many.
std::optional<int64_t> ServerStrategy::samples() const {
  return reply_.samples + (local_ ? local_->samples() : 0) * options_.spec.policy.workers;
}

void ServerStrategy::begin(const StepStart& start) {
  MUSTER_CHECK(!start.changed);
  in_step_ = true;
  start_ = start;
  not_finite_.clear();
  if (is_local()) local_->begin();
}

void ServerStrategy::deliver(size_t parameter, const void* gradient, bool /*held*/) {
  if (gradient != nullptr && !options_.spec.stop_at_nan) check_finite(parameter, gradient);
  if (is_local()) {
    local_->deliver(parameter, gradient);
  } else {
    with_servers([&] { options_.client.deliver(parameter, gradient); });
  }
}

void ServerStrategy::check_finite(size_t parameter, const void* gradient) {
  if (all_finite(layout_[parameter].dtype, gradient, layout_[parameter].count())) return;
  not_finite_ = not_finite_text(parameter);
}

std::string ServerStrategy::not_finite_text(size_t parameter) const {
  return fmt::format("the gradient of {} from worker/{}", layout_[parameter].name, options_.worker);
}

StepResult ServerStrategy::finish(double loss) {
  in_step_ = false;
  StepResult result;
  result.total = start_.total;
  result.lr = start_.lr;
  result.loss = loss;
  result.not_finite = not_finite_;
  if (start_.weight == 0) {
    finish_epoch(result);
  } else if (is_local()) {
    if (not_finite_.empty()) update_locally(result);
    result.applied = not_finite_.empty();
    result.total *= options_.spec.policy.workers;  // the others do the same
    local_->count_step(start_.samples);
    if (local_count() >= local_limit()) send_local_steps(loss, result);
  } else {
    push({.step = reply_.step,
          .version = version_,
          .weight = start_.weight,
          .total = start_.total,
          .lr = start_.lr,
          .gradient_scale = start_.gradient_scale,
          .loss = loss,
          .samples = start_.samples,
          .skip = !not_finite_.empty()},
         result);
  }
  return result;
}

void ServerStrategy::push(Push push, StepResult& result) {
  const auto start = Clock::now();
  const Reply reply = ask([&] { return options_.client.push(push); });
  const auto answered = Clock::now();
  if (push.samples == 0 && reply.samples > 0)
    raise<InvalidArgument>(
        "worker/{} gives Trainer::step() no size of the batch, and others do: batches count by it, so give "
        "it on all workers, or on none",
        options_.worker);
  pull();
  result.wait = answered - start;
  result.update = Clock::now() - answered;
  result.applied = reply.outcome == Answer::Outcome::kApplied;
  result.dropped = reply.outcome == Answer::Outcome::kDropped ? 1 : 0;
  result.staleness = reply.staleness;
  if (reply.outcome != Answer::Outcome::kApplied) return;
  result.loss = reply.loss;
  result.total = reply.total;
}

// Waits until all workers have finished the epoch: then everyone may go on.
void ServerStrategy::finish_epoch(StepResult& result) {
  if (local_count() > 0) {
    send_local_steps(0, result);
  } else if (is_local() && !local_->is_at_anchor()) {
    log_warning(
        "parameters of worker/{} were changed after its last average, and before another step: the change is "
        "lost",
        options_.worker);
  }
  const auto start = Clock::now();
  if (!done()) {
    ask([this] { return options_.client.finish_epoch(); });
    pull();
  }
  result.finished = true;
  result.wait += Clock::now() - start;
}

void ServerStrategy::update_locally(StepResult& result) {
  const auto updated = local_->update(start_);
  result.gradient_norm = updated.gradient_norm;
  if (updated.not_finite) result.not_finite = not_finite_text(*updated.not_finite);
}

// The average of the workers' parameters is the anchor less the average of their deltas.
void ServerStrategy::send_local_steps(double loss, StepResult& result) {
  for (size_t i = 0; i < layout_.size(); ++i) options_.client.deliver(i, local_->delta(i));
  const int64_t samples = local_->samples();
  const int64_t count = local_->count();
  local_->forget();
  const bool applied = result.applied;
  push(
      {.step = reply_.step, .version = version_, .lr = 1, .loss = loss, .samples = samples, .advance = count},
      result);
  result.applied = applied;
  result.total = start_.total * options_.spec.policy.workers;
}

int64_t ServerStrategy::local_limit() const {
  int64_t limit = options_.sync_every;
  const auto limit_to = [&](int64_t end) {
    limit = std::min(limit, std::max<int64_t>(1, end - reply_.step));
  };
  const auto& policy = options_.spec.policy;
  if (policy.max_steps > 0) limit_to(policy.max_steps);
  const auto next = std::ranges::upper_bound(policy.phases, reply_.step, {}, &Phase::from);
  if (next != policy.phases.end()) limit_to(next->from);
  return limit;
}

}  // namespace muster::detail
