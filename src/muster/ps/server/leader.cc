#include "muster/ps/server/leader.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "muster/base/error.h"
#include "muster/ps/session_protocol.h"

namespace muster::detail {
namespace {

// At once, whatever is decided.
bool is_answered_by_server(Request::Kind kind) {
  return kind == Request::Kind::kAway || kind == Request::Kind::kBack || kind == Request::Kind::kLeave;
}

}  // namespace

Leader::Leader(Options options)
    : options_(std::move(options)), policy_(options_.policy), followers_(options_.followers) {}

Leader::~Leader() {
  if (options_.waits != nullptr) options_.waits->set_held(this, {});
}

Decision Leader::take(int worker, int incarnation, const Request& request) {
  if (request.kind == Request::Kind::kEnter) {
    waiting_to_enter_.push_back({worker, incarnation});
    return admit();
  }
  if (!entered_.contains(worker)) {
    if (is_answered_by_server(request.kind)) return {};
    return {.commands = {}, .answers = {{.worker = worker, .kind = Answer::Kind::kDone}}};
  }
  switch (request.kind) {
    case Request::Kind::kPush:
      return told(policy_.push(worker, request.push));
    case Request::Kind::kFinishEpoch:
      return told(policy_.finish_epoch(worker));
    case Request::Kind::kAway:
      return told(policy_.away(worker));
    case Request::Kind::kBack:
      return told(policy_.back(worker));
    case Request::Kind::kResume:
      return told(policy_.resume(worker));
    case Request::Kind::kLeave:
      entered_.erase(worker);
      return told(policy_.leave(worker));
    default:
      throw InvalidArgument("it asks the leader for what the leader does not decide");
  }
}

Decision Leader::open() {
  is_open_ = true;
  return admit();
}

// Nobody begins before there are parameters.
Decision Leader::admit() {
  Decision all;
  if (!is_open_) return all;
  for (const auto& [worker, incarnation] : std::exchange(waiting_to_enter_, {})) {
    entered_.insert(worker);
    Decision decision = told(policy_.enter(worker, incarnation));
    std::ranges::move(decision.commands, std::back_inserter(all.commands));
    std::ranges::move(decision.answers, std::back_inserter(all.answers));
  }
  return all;
}

Decision Leader::fail(int worker) {
  std::erase_if(waiting_to_enter_, [&](const Waiting& waiting) { return waiting.worker == worker; });
  entered_.erase(worker);
  return told(policy_.fail(worker));
}

Decision Leader::told(Decision decision) {
  for (const auto& command : decision.commands) followers_.send(command);
  return decision;
}

void Leader::report_waits() {
  if (options_.waits == nullptr) return;
  ++looks_;
  std::vector<Wait> held;
  const auto add = [&](const UpdatePolicy::Need& need) {
    Wait& wait = held.emplace_back(Wait{.of = options_.name_of(need.worker), .looks = looks_});
    wait.wait_for = {.what = need.what,
                     .tasks = {},
                     .enough = need.enough,
                     .subject = model_subject(options_.followers.model_id)};
    for (const int other : need.of) wait.wait_for.tasks.push_back(options_.name_of(other));
  };
  for (const auto& need : policy_.needs()) add(need);
  for (const auto& waiting : waiting_to_enter_) add({waiting.worker, "the first parameters", {0}});
  options_.waits->set_held(this, std::move(held));
}

}  // namespace muster::detail
