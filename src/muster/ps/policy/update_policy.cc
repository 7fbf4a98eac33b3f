#include "muster/ps/policy/update_policy.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "muster/base/config.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/text.h"
#include "muster/ps/policy/mode_rules.h"

namespace muster::detail {
namespace {

constexpr std::array kModes = {Mode::kAsync, Mode::kSync, Mode::kSsp, Mode::kLocal};

std::string gradients_instead(int now, int before) {
  return fmt::format("averaging {} gradient{} instead of {}", now, now == 1 ? "" : "s", before);
}

void check_phases(const std::vector<Phase>& phases) {
  if (phases.empty() || phases.front().from != 0) {
    raise<InvalidArgument>("--switch: the first mode is from step {}; expected step 0",
                           phases.empty() ? -1 : phases.front().from);
  }
  for (size_t i = 1; i < phases.size(); ++i) {
    if (phases[i].from <= phases[i - 1].from) {
      raise<InvalidArgument>("--switch: {} from step {} follows {} from step {}; expected steps that grow",
                             to_string(phases[i].mode), phases[i].from, to_string(phases[i - 1].mode),
                             phases[i - 1].from);
    }
  }
}

void check_least(const char* what, int64_t value, int64_t least) {
  if (value < least) raise<InvalidArgument>("{} is {}; expected at least {}", what, value, least);
}

PolicyOptions checked(PolicyOptions options) {
  check_least("the number of workers", options.workers, 1);
  check_phases(options.phases);
  check_least("max_steps", options.max_steps, 0);
  check_least("--replicas-to-aggregate", options.aggregate, 0);
  const int aggregate = options.aggregate > 0 ? options.aggregate : options.workers;
  if (options.init_tokens != 0 && options.init_tokens < aggregate) {
    raise<InvalidArgument>(
        "--init-tokens is {}, but {} gradients make a step (--replicas-to-aggregate): expected at least {}, "
        "or 0",
        options.init_tokens, aggregate, aggregate);
  }
  check_least("--max-staleness", options.max_staleness, -1);
  check_least("--staleness", options.staleness, 0);
  return options;
}

}  // namespace

Mode parse_mode(const std::string& text) {
  for (const Mode mode : kModes) {
    if (text == to_string(mode)) return mode;
  }
  raise<InvalidArgument>("'{}' is not a mode; expected ps-async, ps-sync, ps-ssp or ps-local", text);
}

const char* to_string(Mode mode) {
  switch (mode) {
    case Mode::kAsync:
      return "ps-async";
    case Mode::kSync:
      return "ps-sync";
    case Mode::kSsp:
      return "ps-ssp";
    case Mode::kLocal:
      break;
  }
  return "ps-local";
}

std::vector<Phase> parse_phases(const std::string& text) {
  const auto switches = parse_switches(text);
  if (!switches) raise<InvalidArgument>("--switch {} is not like 0:ps-sync,500:ps-async", text);
  std::vector<Phase> phases;
  for (const auto& [from, mode] : *switches) phases.push_back({.from = from, .mode = parse_mode(mode)});
  return phases;
}

UpdatePolicy::UpdatePolicy(PolicyOptions options)
    : state_(std::make_unique<PolicyState>(PolicyState{.options = checked(std::move(options))})) {
  state_->workers.resize(static_cast<size_t>(state_->options.workers));
  begin_phase();
}

UpdatePolicy::~UpdatePolicy() = default;

Decision UpdatePolicy::enter(int index, int incarnation) {
  if (index < 0 || index >= state_->options.workers) {
    raise<InvalidArgument>("worker/{} enters; expected 0 to {}", index, state_->options.workers - 1);
  }
  WorkerState& worker = state_->worker(index);
  if (incarnation < worker.incarnation) return {};
  if (worker.living() && incarnation == worker.incarnation) {
    if (worker.request != WorkerState::Request::kEnter || !worker.answer) return {};
    return {.commands = {}, .answers = {*worker.answer}};
  }
  if (worker.living()) retire(index);
  const bool had_failed = worker.failed;
  const int before = needed();
  worker = {.status = WorkerState::Status::kComputing, .incarnation = incarnation, .expected = false};
  static_cast<void>(state_->counts[index]);  // it is in the report from now on
  worker.ask(WorkerState::Request::kEnter, WorkerState::Status::kWaiting);
  queue_.push_back(index);
  rules_->activated(index);
  const int after = needed();
  if (had_failed && after > before && !over()) {
    log_info("worker/{} is back: {}", index, gradients_instead(after, before));
  }
  return settle();
}

Decision UpdatePolicy::push(int index, const Push& push) {
  WorkerState& worker = check_free(index, "pushes");
  check_push(index, push);
  worker.ask(WorkerState::Request::kPush, WorkerState::Status::kWaiting);
  queue_.push_back(index);
  worker.token.reset();
  state_->samples += push.samples;
  rules_->receive(index, push);
  return settle();
}

Decision UpdatePolicy::finish_epoch(int index) {
  WorkerState& worker = check_free(index, "finishes the epoch");
  worker.ask(WorkerState::Request::kFinishEpoch, WorkerState::Status::kFinishedEpoch);
  worker.token.reset();
  rules_->deactivated(index);
  return settle();
}

Decision UpdatePolicy::away(int index) {
  WorkerState& worker = check_free(index, "goes away");
  worker.status = WorkerState::Status::kAway;
  worker.token.reset();
  rules_->deactivated(index);
  return settle();
}

Decision UpdatePolicy::back(int index) {
  if (!is_living(index) || state_->worker(index).status != WorkerState::Status::kAway)
    raise<InvalidArgument>("worker/{} is back, but was not away", index);
  state_->worker(index).status = WorkerState::Status::kBack;
  rules_->activated(index);
  return settle();
}

Decision UpdatePolicy::resume(int index) {
  if (!is_living(index) || state_->worker(index).status != WorkerState::Status::kBack)
    raise<InvalidArgument>("worker/{} resumes, but has not come back", index);
  WorkerState& worker = state_->worker(index);
  worker.ask(WorkerState::Request::kResume, WorkerState::Status::kWaiting);
  queue_.push_back(index);
  return settle();
}

Decision UpdatePolicy::leave(int index) {
  if (!is_living(index) && !is_expected(index)) return {};
  retire(index);
  Decision decision = settle();
  if (living() == 0 && state_->expected() == 0 && !over()) warn_of_gathered();
  return decision;
}

// All have ended, and gradients are left that are too few for an update.
void UpdatePolicy::warn_of_gathered() const {
  int64_t gathered = 0;
  for (int worker = 0; worker < state_->options.workers; ++worker) gathered += rules_->gathered(worker);
  if (gathered == 0) return;
  log_warning(
      "all workers have ended, and only {} of the {} gradients that make update {} "
      "(--replicas-to-aggregate) have come: what {} would change is lost",
      gathered, needed(), version() + 1, gathered == 1 ? "it" : "they");
}

Decision UpdatePolicy::fail(int index) {
  if (!is_living(index) && !is_expected(index)) return {};
  const int before = needed();
  retire(index);
  state_->worker(index).failed = true;
  const int after = needed();
  if (after < before && !over()) {
    log_warning("worker/{} has failed: {}", index, gradients_instead(after, before));
  }
  return settle();
}

WorkerState& UpdatePolicy::check_free(int index, const char* does) {
  if (!is_living(index)) raise<InvalidArgument>("worker/{} {}, but has not entered", index, does);
  WorkerState& worker = state_->worker(index);
  if (worker.status != WorkerState::Status::kComputing) {
    raise<InvalidArgument>("worker/{} {}, but has not had the answer to its last request", index, does);
  }
  return worker;
}

void UpdatePolicy::check_push(int index, const Push& push) const {
  const WorkerState& worker = state_->worker(index);
  if (!worker.token || *worker.token != push.step) {
    raise<InvalidArgument>("worker/{} pushes a gradient for step {}; its token is for {}", index, push.step,
                           worker.token ? fmt::format("step {}", *worker.token) : "none");
  }
  if (push.version < 0 || push.version > state_->version) {
    raise<InvalidArgument>("worker/{} pushes a gradient of version {}; expected 0 to {}", index, push.version,
                           state_->version);
  }
  if (!push.skip && !(push.weight > 0 && push.total > 0)) {
    raise<InvalidArgument>(
        "worker/{} pushes a gradient with a weight of {} and a total of {}; expected more than 0", index,
        push.weight, push.total);
  }
  if (push.samples < 0)
    raise<InvalidArgument>("worker/{} pushes a gradient of {} samples", index, push.samples);
}

void UpdatePolicy::retire(int index) {
  WorkerState& worker = state_->worker(index);
  worker = {.incarnation = worker.incarnation, .expected = false};
  std::erase(queue_, index);
  rules_->deactivated(index);
  rules_->settle();
}

Decision UpdatePolicy::settle() {
  if (living() > 0 && state_->active() + state_->expected() == 0) begin_epoch();
  rules_->settle();
  const bool is_stepwise = mode() == Mode::kSync || mode() == Mode::kLocal ||
                           (mode() == Mode::kSsp && state_->options.staleness == 0);
  if (!is_stepwise || state_->step != state_->position_step) {
    state_->position = state_->samples;
    state_->position_step = state_->step;
  }
  if (over()) {
    finish();
  } else {
    if (phase_at(state_->step) != phase_) begin_phase();
    hand_out();
  }
  return std::exchange(state_->decision, {});
}

// All workers have finished the epoch or are away, and none is still to come: those who finished begin the
// next.
void UpdatePolicy::begin_epoch() {
  state_->position = state_->samples;  // nobody is within a step: what came too late for one counts now
  for (int index = 0; index < state_->options.workers; ++index) {
    if (state_->worker(index).status != WorkerState::Status::kFinishedEpoch) continue;
    state_->worker(index).status = WorkerState::Status::kWaiting;
    queue_.push_back(index);
    rules_->activated(index);
  }
}

void UpdatePolicy::hand_out() {
  for (const int index : std::vector(queue_)) {
    if (!rules_->may_begin(index)) continue;
    rules_->release(index);
    state_->worker(index).token = state_->step;
    std::erase(queue_, index);
    answer(index, Answer::Kind::kBegin);
  }
}

void UpdatePolicy::finish() {
  state_->position = state_->samples;
  for (int index = 0; index < state_->options.workers; ++index) {
    const WorkerState::Status status = state_->worker(index).status;
    if (status == WorkerState::Status::kWaiting || status == WorkerState::Status::kFinishedEpoch)
      answer(index, Answer::Kind::kDone);
  }
  queue_.clear();
}

void UpdatePolicy::answer(int index, Answer::Kind kind) {
  WorkerState& worker = state_->worker(index);
  worker.status = WorkerState::Status::kComputing;
  Answer answer = worker.next_answer;
  answer.worker = index;
  answer.kind = kind;
  answer.mode = mode();
  answer.step = state_->step;
  answer.version = state_->version;
  answer.samples = state_->position;
  worker.answer = answer;
  state_->decision.answers.push_back(answer);
}

size_t UpdatePolicy::phase_at(int64_t step) const {
  const auto next = std::ranges::upper_bound(state_->options.phases, step, {}, &Phase::from);
  return static_cast<size_t>(next - state_->options.phases.begin()) - 1;
}

void UpdatePolicy::begin_phase() {
  const PolicyOptions& options = state_->options;
  phase_ = phase_at(state_->step);
  const auto [from, mode] = options.phases[phase_];
  int64_t end = std::numeric_limits<int64_t>::max();
  if (phase_ + 1 < options.phases.size()) end = options.phases[phase_ + 1].from;
  if (options.max_steps > 0) end = std::min(end, options.max_steps);
  const PhaseSpan span = {.mode = mode, .from = from, .end = end};
  const bool averages =
      mode == Mode::kSync || mode == Mode::kLocal || (mode == Mode::kSsp && options.staleness == 0);
  rules_ = averages ? sync_rules(*state_, span) : async_rules(*state_, span);
}

bool UpdatePolicy::over() const {
  return state_->options.max_steps > 0 && state_->step >= state_->options.max_steps;
}

bool UpdatePolicy::is_living(int index) const {
  return index >= 0 && index < state_->options.workers && state_->worker(index).living();
}

bool UpdatePolicy::is_expected(int index) const {
  return index >= 0 && index < state_->options.workers && state_->worker(index).expected;
}

// If nobody had finished the epoch.
int UpdatePolicy::needed() const {
  return rules_->needed(state_->living() + state_->expected());
}

int64_t UpdatePolicy::step() const {
  return state_->step;
}

int64_t UpdatePolicy::version() const {
  return state_->version;
}

Mode UpdatePolicy::mode() const {
  return state_->options.phases[phase_].mode;
}

int UpdatePolicy::living() const {
  return state_->living();
}

std::vector<UpdatePolicy::Need> UpdatePolicy::needs() const {
  std::vector<Need> needs;
  for (const int index : queue_) {
    needs.push_back(rules_->need(index));
    needs.back().worker = index;
  }
  for (int index = 0; index < state_->options.workers; ++index) {
    if (state_->worker(index).status != WorkerState::Status::kFinishedEpoch) continue;
    Need& need = needs.emplace_back(Need{.worker = index, .what = "the end of the epoch"});
    for (int other = 0; other < state_->options.workers; ++other) {
      if (state_->worker(other).active() || is_expected(other)) need.of.push_back(other);
    }
  }
  return needs;
}

const std::map<int, UpdatePolicy::WorkerCounts>& UpdatePolicy::counts() const {
  return state_->counts;
}

std::string UpdatePolicy::report() const {
  std::string text;
  for (const auto& [worker, count] : state_->counts) {
    fmt::format_to(std::back_inserter(text), "worker/{}: {} applied, {} dropped, {} skipped", worker,
                   count.applied, count.dropped, count.skipped);
    if (const int64_t gathered = rules_->gathered(worker); gathered > 0 && living() == 0)
      fmt::format_to(std::back_inserter(text), ", {} too few for an update", gathered);
    const char* before = "; staleness ";
    for (const auto& [staleness, times] : count.staleness) {
      fmt::format_to(std::back_inserter(text), "{}{}: {}", std::exchange(before, ", "), staleness, times);
    }
    text += '\n';
  }
  return text;
}

}  // namespace muster::detail
