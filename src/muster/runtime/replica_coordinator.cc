#include "muster/runtime/replica_coordinator.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/runtime/stall_warning.h"

namespace muster::detail {

namespace {

constexpr auto kLookForAbort = std::chrono::milliseconds(50);
constexpr int64_t kMostReplicas = 1 << 16;

}  // namespace

PolicyOptions replica_options(int64_t workers, int64_t aggregate) {
  if (workers < 1 || workers > kMostReplicas)
    raise<InvalidArgument>("the total number of replicas is {}; expected 1 to {}", workers, kMostReplicas);
  if (aggregate < 0 || aggregate > std::numeric_limits<int>::max())
    raise<InvalidArgument>(
        "{} replicas are to be aggregated; expected at least 1, or 0 for one gradient of each replica",
        aggregate);
  return {.workers = static_cast<int>(workers),
          .phases = {{0, Mode::kSync}},
          .aggregate = static_cast<int>(aggregate)};
}

ReplicaCoordinator::ReplicaCoordinator(const PolicyOptions& options, TaskVariable& global_step,
                                       std::chrono::milliseconds stall_warning)
    : options_(options),
      stall_warning_(stall_warning),
      number_(random_number()),
      global_step_(global_step),
      policy_(options),
      workers_(static_cast<size_t>(options.workers)) {}

void ReplicaCoordinator::check_options(const PolicyOptions& options) const {
  if (options.workers != options_.workers || options.aggregate != options_.aggregate)
    raise<InvalidArgument>(
        "this replica aggregates {} of {} replicas, and others {} of {}: all need the same numbers",
        options.aggregate, options.workers, options_.aggregate, options_.workers);
}

ReplicaCoordinator::Worker& ReplicaCoordinator::enter(const Run& run) {
  if (run.worker < 0 || run.worker >= options_.workers)
    raise<InvalidArgument>("there is no replica {}: they are 0 to {}", run.worker, options_.workers - 1);
  Worker& worker = workers_[static_cast<size_t>(run.worker)];
  if (gone_.contains(run.session)) {
    if (!worker.session) raise<Aborted>("the session of replica {} has ended", run.worker);
    raise<InvalidArgument>(
        "another client says that it is replica {}, too, and is taken for it: each client has a number of "
        "its own in SyncReplicas::replica",
        run.worker);
  }
  if (worker.session == run.session) return worker;
  if (worker.session) gone_.insert(*worker.session);
  worker = {.session = run.session, .incarnation = worker.incarnation + 1, .waits = worker.waits};
  take(policy_.enter(static_cast<int>(run.worker), worker.incarnation));
  return worker;
}

void ReplicaCoordinator::take(Decision decision) {
  for (auto& command : decision.commands) pending_.push_back({++last_number_, std::move(command)});
  for (const auto& answer : decision.answers)
    workers_[static_cast<size_t>(answer.worker)].offered =
        Token{.step = answer.step, .version = answer.version, .after = last_number_};
  changed_.notify_all();
}

CommandList ReplicaCoordinator::push(const Run& run, double lr) {
  const MutexLock lock(mutex_);
  Worker& worker = enter(run);
  const auto index = static_cast<int>(run.worker);
  if (const auto token = std::exchange(worker.held, {})) {
    take(policy_.push(index,
                      {.sequence = run.step, .step = token->step, .version = token->version, .lr = lr}));
  } else {
    // Nobody knows of which step the variables were that it has read.
    take({.commands = {{.kind = Command::Kind::kDrop,
                        .sources = {{.worker = index, .sequence = run.step}},
                        .step = policy_.step()}}});
  }
  carrying_[run.step] = last_number_;
  return {.coordinator = number_, .commands = {pending_.begin(), pending_.end()}};
}

void ReplicaCoordinator::carried_out(const Run& run, int64_t number) {
  const MutexLock lock(mutex_);
  if (number > last_number_)
    raise<InvalidArgument>("command {} was carried out, of {}", number, last_number_);
  carrying_.erase(run.step);
  int64_t step = step_;
  size_t done = 0;
  while (done < pending_.size() && pending_[done].number <= number) step = pending_[done++].command.step;
  if (step > step_) global_step_.add(at::scalar_tensor(step - step_, at::TensorOptions(at::kLong)));
  step_ = step;
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(done));
  carried_out_ = std::max(carried_out_, number);
  changed_.notify_all();
}

bool ReplicaCoordinator::is_abandoned() const {
  return !pending_.empty() && std::none_of(carrying_.begin(), carrying_.end(), [this](const auto& run) {
    mutex_.assert_held();
    return run.second >= pending_.back().number;
  });
}

void ReplicaCoordinator::wait(const Run& run, const std::function<void()>& check) {
  MutexLock lock(mutex_);
  Worker& worker = enter(run);
  const uint64_t mine = ++worker.waits;
  changed_.notify_all();
  StallWarning warning(stall_warning_);
  while (true) {
    if (worker.offered && worker.offered->after <= carried_out_)
      worker.held = std::exchange(worker.offered, {});
    if (worker.held || is_abandoned()) return;
    changed_.wait_for(lock, kLookForAbort);
    check();
    if (worker.session != run.session) enter(run);  // which says why that is not possible
    if (worker.waits != mine) raise<Aborted>("another run of replica {} has begun", run.worker);
    if (warning.is_due()) say_what_is_missing(run.worker);
  }
}

void ReplicaCoordinator::say_what_is_missing(int64_t worker) const {
  for (const auto& need : policy_.needs()) {
    if (need.worker == worker)
      log_warning("replica {} waits for {} more of replicas {}", worker,
                  need.enough == 1 ? "one gradient" : fmt::format("{} gradients", need.enough),
                  fmt::join(need.of, ", "));
  }
}

void ReplicaCoordinator::end_run(uint64_t step) {
  const MutexLock lock(mutex_);
  if (carrying_.erase(step) > 0) changed_.notify_all();
}

void ReplicaCoordinator::end_session(uint64_t session) {
  const MutexLock lock(mutex_);
  gone_.insert(session);
  for (int i = 0; i < options_.workers; ++i) {
    Worker& worker = workers_[static_cast<size_t>(i)];
    if (worker.session != session) continue;
    worker = {.incarnation = worker.incarnation, .waits = worker.waits};
    take(policy_.leave(i));
    log_info("the session of replica {} has ended: {} of {} replicas are left", i, policy_.living(),
             options_.workers);
  }
}

ReplicaCoordinator& Replicas::coordinator(const std::string& group, const PolicyOptions& options,
                                          TaskVariable& global_step) {
  const MutexLock lock(mutex_);
  auto found = coordinators_.find(group);  // never null: end_run() and end_session() call them all
  if (found == coordinators_.end())
    found = coordinators_
                .emplace(group, std::make_unique<ReplicaCoordinator>(options, global_step, stall_warning_))
                .first;
  found->second->check_options(options);
  return *found->second;
}

Accumulator& Replicas::accumulator(const std::string& group, TaskVariable& variable) {
  const MutexLock lock(mutex_);
  auto& accumulator = accumulators_[{group, &variable}];
  if (!accumulator) accumulator = std::make_unique<Accumulator>(variable);
  return *accumulator;
}

void Replicas::end_run(uint64_t step) {
  const MutexLock lock(mutex_);
  for (const auto& [group, coordinator] : coordinators_) coordinator->end_run(step);
}

void Replicas::end_session(uint64_t session) {
  const MutexLock lock(mutex_);
  for (const auto& [group, coordinator] : coordinators_) coordinator->end_session(session);
}

}  // namespace muster::detail
