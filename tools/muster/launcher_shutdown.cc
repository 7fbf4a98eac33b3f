// When and how a launch ends. The rest of Launcher is in launcher.cc.

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/mutex.h"
#include "muster/launcher.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;

// When the job is aborted, tasks that have entered it hear so themselves and end with a message: they have
// the grace period for that, since a machine may be slow. Where tasks have not entered, because they are not
// on Muster or it is too early, they are told by signal after this time.
constexpr auto kDrainTime = 500ms;
// Of a task that ends well, and yet has not left the job.
constexpr const char* kInTheMiddle =
    "exited with code 0 in the middle of its work: it did not return from muster::run";

}  // namespace

// Servers are needed, and one worker. Programs that are not on Muster are unknown to the coordinator.
bool Launcher::goes_on_without(const Task& task) {
  if (!goes_on_ || task.name.job == "ps") return false;
  const bool was_last =
      options_.spec.nodes == 1 && !any_running(/*workers_only=*/true) && !any_worker_ended_well();
  return nodes_->task_ended(task.name, task.process->exit()->describe()) && !was_last;
}

// A worker that was stopped for too long, or hangs, is not waited for when the others are done.
bool Launcher::any_running(bool workers_only) const {
  return std::any_of(tasks_.begin(), tasks_.end(), [&](const Task& task) {
    if (!task.process->running()) return false;
    return !workers_only || (task.name.job != "ps" && !(goes_on_ && task.given_up && nodes_->finished()));
  });
}

bool Launcher::any_worker_ended_well() const {
  return std::any_of(tasks_.begin(), tasks_.end(), [](const Task& task) {
    return task.name.job != "ps" && task.process->exit() && task.process->exit()->ok();
  });
}

void Launcher::note_failures() {
  const MutexLock lock(shared_.mutex);
  for (const auto& failed : std::exchange(shared_.failed, {})) {
    const size_t index = index_of(failed.task);
    if (index == tasks_.size() || tasks_[index].restarts != failed.incarnation) continue;
    tasks_[index].given_up = true;
    if (!tasks_[index].process->running()) say_ended_in_the_middle(tasks_[index]);
  }
}

// The coordinator says only that its connection closed.
void Launcher::say_ended_in_the_middle(const Task& task) {
  if (task.process->exit()->ok())
    output_->warn(fmt::format("{} (pid {}) {}", task.name.short_name(), task.process->pid(), kInTheMiddle));
}

void Launcher::check_done() {
  const auto how = aborted();
  std::optional<bool> all_nodes_done;
  {
    const MutexLock lock(shared_.mutex);
    all_nodes_done = shared_.all_nodes_done;
  }
  if (status_ != Status::kRunning) return;
  if (how) {
    // A task that gave the reason or died is heard of otherwise; one that hangs is not, and takes a while.
    if (!how->said && !how->died) say(how->reason + "; stopping the tasks");
    begin_stopping(1, /*at_once=*/false);
  } else if (!any_running(/*workers_only=*/true)) {
    if (options_.spec.nodes == 1 || all_nodes_done.value_or(false)) {
      begin_finishing();
    } else if (all_nodes_done) {
      first_failure_ = last_survived_failure_;
      begin_stopping(tasks_[*last_survived_failure_].process->exit()->as_exit_code(), /*at_once=*/false);
    } else if (!waiter_.joinable()) {
      wait_for_other_nodes();
    }
  }
}

void Launcher::wait_for_other_nodes() {
  waiter_ = std::thread([this, ended_well = any_worker_ended_well()] {
    bool anywhere = false;
    try {
      anywhere = nodes_->wait_for_all(ended_well);
    } catch (const Error&) {
      return;  // aborted: the launcher is told through its member
    }
    const MutexLock lock(shared_.mutex);
    shared_.all_nodes_done = anywhere;
    eventfd_write(wake_, 1);
  });
}

// Servers built on Muster hear from the coordinator that the workers are done; others are told by signal.
void Launcher::begin_finishing() {
  status_ = Status::kFinishing;
  exit_code_ = 0;
  if (any_running(/*workers_only=*/false)) term_at_ = Deadline::after(options_.grace);
}

void Launcher::begin_stopping(int exit_code, bool at_once) {
  status_ = Status::kStopping;
  if (!exit_code_) exit_code_ = exit_code;
  const auto drain_time = nodes_->assembled() ? options_.grace : kDrainTime;
  term_at_ = Deadline::after(at_once ? 0ms : drain_time);
  kill_at_.reset();
  if (interrupted_) {
    nodes_->abort("the user stopped the job", std::nullopt);
  } else if (first_failure_) {
    const Task& task = tasks_[*first_failure_];
    nodes_->abort(fmt::format("{} {}", task.name.short_name(), task.process->exit()->describe()), task.name);
  }
}

void Launcher::stop_tasks(int signal) {
  for (auto& task : tasks_) {
    if (!task.process->running()) continue;
    task.told_to_stop = true;
    task.process->signal(signal);
  }
}

std::optional<Member::Ended> Launcher::aborted() {
  if (auto how = nodes_->aborted()) return how;
  const MutexLock lock(shared_.mutex);
  return shared_.aborted;
}

Launcher::Outcome Launcher::outcome() {
  const auto how = aborted();
  // Several tasks may have failed, one because of the other: the coordinator knows which one was first.
  std::optional<size_t> culprit = first_failure_;
  if (how && how->by && *how->by != TaskName::of("launcher", options_.node)) culprit = index_of(*how->by);
  const std::string reason = how ? how->reason : "the job was aborted";
  // Nobody's fault, or that of a task on another node.
  if (!culprit || *culprit == tasks_.size()) return {.text = reason, .exit_code = *exit_code_};
  const Task& task = tasks_[*culprit];
  const Exit exit = *task.process->exit();
  const std::string name = task.name.short_name();
  // A task that gave a reason and was then too slow to end was ended by us: its reason counts, not our
  // signal.
  const bool ended_by_itself = !task.told_to_stop && !exit.ok();
  const int exit_code = ended_by_itself ? exit.as_exit_code() : 1;
  if (how && how->said) return {.text = reason, .exit_code = exit_code};
  const bool in_the_middle = how && how->died && exit.ok();
  return {
      .text = ended_by_itself || in_the_middle
                  ? fmt::format("the job failed: {} {}", name, in_the_middle ? kInTheMiddle : exit.describe())
                  : reason,
      .exit_code = exit_code,
      .last_lines = output_->last_lines(*culprit),
      .task = name};
}

// All-reduce has no use for a worker that comes again alone: the others have failed with it. All launchers
// decide alike, since all are told the same; so they wait to be told.
bool Launcher::may_begin_again() {
  if (goes_on_ || interrupted_ || exit_code_.value_or(0) == 0 || restarts_ == options_.max_restarts)
    return false;
  const auto deadline = Deadline::after(options_.config.heartbeat_timeout);
  auto how = aborted();
  while (!how && first_failure_ && !deadline.expired()) {
    pollfd wait = {.fd = wake_, .events = POLLIN, .revents = 0};
    poll(&wait, 1, 100);
    eventfd_t ignored = 0;
    eventfd_read(wake_, &ignored);
    read_signals();
    if (interrupted_) return false;
    how = aborted();
  }
  return how && how->by && how->by->job != "launcher";
}

void Launcher::begin_again() {
  ++restarts_;
  say(fmt::format("{}; starting all tasks again ({} of {})", outcome().text, restarts_,
                  options_.max_restarts));
  tasks_.clear();
  if (waiter_.joinable()) waiter_.join();
  nodes_.reset();
  {
    const MutexLock lock(shared_.mutex);
    shared_.aborted.reset();
    shared_.failed.clear();
    shared_.all_nodes_done.reset();
  }
  status_ = Status::kRunning;
  exit_code_.reset();
  first_failure_.reset();
  last_survived_failure_.reset();
  term_at_.reset();
  kill_at_.reset();
}

// Programs that are not on Muster may be launched too, but nobody should believe that they train together.
void Launcher::say_who_did_not_enter() {
  auto flags = options_.config.given_for_training();
  std::ranges::copy(options_.config.given_for_collectives(), std::back_inserter(flags));
  // The launchers of several nodes go by some of them, too.
  if (options_.spec.nodes == 1)
    std::ranges::copy(options_.config.given_for_members(), std::back_inserter(flags));
  if (!flags.empty()) {
    output_->warn(fmt::format(
        "not all tasks entered the job, so that {} had no effect: does the program call muster::run?",
        fmt::join(flags, ", ")));
  } else if (tasks_.size() > 1 && options_.config.strategy != "none") {
    output_->warn(
        "not all tasks entered the job, so that Muster did not train them together: does the program call "
        "muster::run? (--strategy none says that it need not)");
  }
}

int Launcher::conclude() {
  if (!exit_code_ || *exit_code_ == 0) {
    try {
      if (!nodes_->assembled()) say_who_did_not_enter();
      if (!aborted()) nodes_->leave();
    } catch (const Error& error) {
      log_debug("the work was done, but the launcher could not leave: {}", error.what());
    }
    return 0;
  }
  if (interrupted_) return *exit_code_;
  const Outcome end = outcome();
  output_->warn(end.text);
  if (!end.last_lines.empty()) {
    say(fmt::format("the last lines of {}:", end.task));
    for (const auto& line : end.last_lines) say("  " + line);
  }
  return end.exit_code;
}

}  // namespace muster::detail
