#include "muster/launcher.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <future>
#include <set>

#include <fmt/format.h>

#include "muster/base/cpu.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/text.h"
#include "muster/find_program.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;

std::vector<std::string> short_names(const std::vector<TaskName>& tasks) {
  std::vector<std::string> names;
  for (const auto& task : tasks) names.push_back(task.short_name());
  return names;
}

// Runs with the same --log-dir, one after the other or at once, on one node or several, stay apart.
std::filesystem::path folder_of_run(const LaunchOptions& options) {
  if (options.log_dir.empty()) return {};
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> time{};
  std::strftime(time.data(), time.size(), "%Y%m%d-%H%M%S", &local);
  const std::string node = options.spec.nodes > 1 ? fmt::format("-node{}", options.node) : "";
  return options.log_dir / fmt::format("{}-{}{}", time.data(), getpid(), node);
}

}  // namespace

Launcher::Launcher(LaunchOptions options)
    : options_(std::move(options)),
      program_(find_program(options_.command.front(),
                            options_.config.environment.get("PATH").value_or("/usr/bin:/bin"))),
      goes_on_(options_.config.uses_servers()),
      adopted_([this](pid_t process) { return is_ours(process); }) {
  options_.check();
  options_.check_node(available_cores());
  wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  const auto folder = folder_of_run(options_);
  const bool colours = !options_.config.environment.get("NO_COLOR");
  output_ = std::make_unique<TaskOutput>(
      TaskOutput::Options{.out_is_terminal = colours && isatty(STDOUT_FILENO) == 1,
                          .err_is_terminal = colours && isatty(STDERR_FILENO) == 1,
                          .log_dir = folder,
                          .tee = options_.tee,
                          .only = options_.only,
                          .timestamps = options_.timestamps},
      short_names(options_.spec.tasks_of_node(options_.node)));
  set_log_level(options_.config.log_level);
  set_log_task("");  // each line is said to be the launcher's
  set_log_sink(
      [this](std::string_view line) { output_->say(line.substr(0, line.find_last_not_of('\n') + 1)); });
  if (!options_.log_dir.empty()) say(fmt::format("logs are kept in {}", folder.string()));
}

Launcher::~Launcher() {
  tasks_.clear();
  // The barrier that it waits in has completed, or the job was aborted.
  if (waiter_.joinable()) waiter_.join();
  nodes_.reset();
  set_log_sink(nullptr);
  close(wake_);
}

int Launcher::run() {
  while (true) {
    try {
      start_tasks(rendezvous_unless_interrupted());
    } catch (const Error& error) {
      if (nodes_) nodes_->abort(error.what(), std::nullopt);
      throw;
    }
    while (any_running(/*workers_only=*/false) || status_ == Status::kRunning) poll_once();
    end_adopted();
    if (!may_begin_again()) return conclude();
    begin_again();
  }
}

// The other nodes may be long in coming, and the user may not want to wait for them.
ClusterSpec Launcher::rendezvous_unless_interrupted() {
  auto rendezvous = std::async(std::launch::async, [this] {
    const std::shared_ptr<void> wake(nullptr, [this](void*) { eventfd_write(wake_, 1); });
    Config config = options_.config;
    // A node that begins again must not find the coordinator that ends on another.
    if (restarts_ > 0 && options_.spec.nodes > 1)
      config.job_id = fmt::format("{}.{}", config.job_id.empty() ? "muster" : config.job_id, restarts_);
    nodes_ = std::make_unique<NodeRendezvous>(
        NodeRendezvous::Options{.spec = options_.spec,
                                .node = options_.node,
                                .config = config,
                                .failure_policy = goes_on_ ? FailurePolicy::kGoOn : FailurePolicy::kAbort,
                                .restarts = options_.max_restarts > 0,
                                .grace = options_.grace,
                                .on_aborted =
                                    [this](const Member::Ended& how) {
                                      const MutexLock lock(shared_.mutex);
                                      shared_.aborted = how;
                                      eventfd_write(wake_, 1);
                                    },
                                .on_task_failed =
                                    [this](const TaskInfo& task) {
                                      const MutexLock lock(shared_.mutex);
                                      shared_.failed.push_back(task);
                                      eventfd_write(wake_, 1);
                                    }});
    return nodes_->exchange_addresses();
  });
  std::array<pollfd, 2> waits = {{{.fd = signals_.descriptor(), .events = POLLIN, .revents = 0},
                                  {.fd = wake_, .events = POLLIN, .revents = 0}}};
  while (rendezvous.wait_for(0s) != std::future_status::ready) {
    poll(waits.data(), waits.size(), 100);
    eventfd_t ignored = 0;
    eventfd_read(wake_, &ignored);
    while (const auto number = signals_.next()) {
      if (LauncherSignals::is_for_tasks(*number)) {
        say(fmt::format("{}: there is no task yet to pass it on to", signal_name(*number)));
        continue;
      }
      say(fmt::format("{}: no task was started {}", signal_name(*number), restarts_ > 0 ? "again" : "yet"));
      _exit(128 + *number);  // nothing has been started: there is nothing to end
    }
  }
  return rendezvous.get();
}

// Looks for signals after each: thousands of tasks take a while.
void Launcher::start_tasks(const ClusterSpec& cluster) {
  const auto names = options_.spec.tasks_of_node(options_.node);
  const auto node = environment_of_node(options_);
  if (!node.tuned.empty() && restarts_ == 0) {
    say(fmt::format("tuned for {}:{} (--no-tune leaves all alone)", CpuFeatures::detect().brand, node.tuned));
  }
  const auto cores = bind_to_cores(options_.binding, list_cores(), static_cast<int>(names.size()));
  if (options_.binding != CoreBinding::kNone && restarts_ == 0) say_binding(names, cores);
  Config config = nodes_->config();
  if (config.progress == ProgressStyle::kAuto) {
    config.progress = isatty(STDERR_FILENO) == 1 ? ProgressStyle::kLive : ProgressStyle::kPlain;
  }
  for (size_t i = 0; i < names.size(); ++i) {
    tasks_.push_back({.name = names[i],
                      .environment = environment_of_task(node.variables, config,
                                                         {.task = names[i],
                                                          .spec = options_.spec,
                                                          .node = options_.node,
                                                          .cluster = cluster,
                                                          .master = nodes_->master()}),
                      .cores = cores[i],
                      .restarts = restarts_});
    start(tasks_.size() - 1);
    read_signals();
    if (status_ != Status::kRunning) return;
  }
}

void Launcher::say_binding(const std::vector<TaskName>& names, const std::vector<std::vector<int>>& cores) {
  std::string bound;
  for (size_t i = 0; i < names.size(); ++i)
    bound += fmt::format("{}{} to {}", i == 0 ? "" : ", ", names[i].short_name(), format_cores(cores[i]));
  say(fmt::format("bound to cores: {}", bound));
}

void Launcher::start(size_t index) {
  Task& task = tasks_[index];
  if (task.restarts > 0) task.environment.set("MUSTER_RESTART_COUNT", std::to_string(task.restarts));
  task.given_up = false;
  task.process = std::make_unique<TaskProcess>(TaskProcess::Options{.program = program_,
                                                                    .arguments = options_.command,
                                                                    .environment = task.environment,
                                                                    .cores = task.cores});
  reaper_.watch(task.process->pid());
}

size_t Launcher::index_of(const TaskName& name) const {
  for (size_t i = 0; i < tasks_.size(); ++i) {
    if (tasks_[i].name == name) return i;
  }
  return tasks_.size();
}

void Launcher::poll_once() {
  std::vector<pollfd> waits = {{.fd = signals_.descriptor(), .events = POLLIN, .revents = 0},
                               {.fd = wake_, .events = POLLIN, .revents = 0}};
  std::vector<std::pair<size_t, int>> sources;
  for (size_t i = 0; i < tasks_.size(); ++i) {
    for (int stream = 0; stream < 2; ++stream) {
      if (tasks_[i].process->pipe(stream) < 0) continue;
      waits.push_back({.fd = tasks_[i].process->pipe(stream), .events = POLLIN, .revents = 0});
      sources.emplace_back(i, stream);
    }
  }
  auto next = Deadline::after(1s);
  if (term_at_) next = next.earlier(*term_at_);
  if (kill_at_) next = next.earlier(*kill_at_);
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next.remaining()).count();
  if (poll(waits.data(), waits.size(), static_cast<int>(wait)) < 0 && errno != EINTR) {
    raise<SystemError>("poll failed: {}", describe_errno(errno));
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    if (waits[i + 2].revents != 0) read_output(sources[i].first, sources[i].second);
  }
  eventfd_t ignored = 0;
  eventfd_read(wake_, &ignored);
  read_signals();
  reap();
  check_output();
  note_failures();
  check_done();
  if (term_at_ && term_at_->expired()) {
    term_at_.reset();
    stop_tasks(SIGTERM);
    kill_at_ = Deadline::after(options_.grace);
  }
  if (kill_at_ && kill_at_->expired()) {
    kill_at_.reset();
    for (const auto& task : tasks_) {
      if (task.process->running())
        say(fmt::format("{} did not end within {}; killing it", task.name.short_name(),
                        format_seconds(options_.grace)));
    }
    stop_tasks(SIGKILL);
  }
}

void Launcher::read_signals() {
  while (const auto number = signals_.next()) {
    if (LauncherSignals::is_for_tasks(*number)) {
      say(fmt::format("{}: passed on to {} tasks", signal_name(*number), tasks_.size()));
      for (const auto& task : tasks_)
        *number == SIGQUIT ? task.process->signal_handlers(*number) : task.process->signal(*number);
    } else if (interrupted_) {  // the user means it
      stop_tasks(SIGKILL);
    } else {
      interrupt(*number, fmt::format("{}: stopping {} (again to kill at once)", signal_name(*number),
                                     running_tasks()));
    }
  }
}

// Also where the launcher has been continued by a signal of somebody who had stopped all.
void Launcher::suspend_tasks(bool stops) {
  if (stops)
    say(fmt::format("SIGTSTP: {} tasks stop until this launcher is continued (fg, or SIGCONT)",
                    tasks_.size()));
  for (const auto& task : tasks_) {
    if (task.process && task.process->running()) kill(-task.process->pid(), stops ? SIGSTOP : SIGCONT);
  }
}

// `muster run | head` ends as a program does that SIGPIPE ends.
void Launcher::check_output() {
  if (signals_.outlives_readers() || interrupted_ || !output_->reader_is_gone()) return;
  interrupt(SIGPIPE, fmt::format("nobody reads the output any more: stopping {}", running_tasks()));
}

std::string Launcher::running_tasks() const {
  const auto running =
      std::ranges::count_if(tasks_, [](const auto& task) { return task.process && task.process->running(); });
  return running == 1 ? "1 task" : fmt::format("{} tasks", running);
}

void Launcher::interrupt(int signal, const std::string& what) {
  interrupted_ = true;
  say(what);
  begin_stopping(128 + signal, /*at_once=*/true);
}

void Launcher::read_output(size_t index, int stream) {
  const auto show = [&](std::string_view bytes) { output_->write(index, stream + 1, bytes); };
  if (!tasks_[index].process->read_pipe(stream, show)) output_->close(index, stream + 1);
}

void Launcher::reap() {
  for (size_t i = 0; i < tasks_.size(); ++i) {
    TaskProcess& process = *tasks_[i].process;
    if (!process.running() || !process.reap()) continue;
    reaper_.forget(process.pid());
    // What it wrote before it ended is in the pipes; its group is gone, so they end.
    for (int stream = 0; stream < 2; ++stream) {
      if (process.pipe(stream) >= 0) read_output(i, stream);
    }
    task_ended(i);
  }
  adopted_.reap();
}

bool Launcher::is_ours(pid_t process) const {
  return process == reaper_.pid() || std::any_of(tasks_.begin(), tasks_.end(), [&](const Task& task) {
           return task.process && task.process->running() && task.process->pid() == process;
         });
}

// Those that they have started come to us when they end.
void Launcher::end_adopted() {
  std::set<pid_t> told;
  const auto deadline = Deadline::after(options_.grace);
  for (auto left = adopted_.living(); !left.empty(); left = adopted_.living()) {
    const bool at_once = deadline.expired() || signals_.next();
    for (const auto& process : left) {
      const bool is_new = told.insert(process.pid).second;
      if (is_new)
        output_->warn(fmt::format("{} has left {} (pid {}) running: ending it",
                                  process.task.empty() ? "a task" : process.task, process.name, process.pid));
      if (!is_new && !at_once) continue;
      kill(process.pid, at_once ? SIGKILL : SIGTERM);
      kill(process.pid, SIGCONT);
    }
    std::this_thread::sleep_for(10ms);
    adopted_.reap();
  }
}

void Launcher::task_ended(size_t index) {
  Task& task = tasks_[index];
  const Exit exit = *task.process->exit();
  const std::string name = task.name.short_name();
  if (exit.ok()) {
    nodes_->task_ended(task.name, exit.describe());
    if (task.given_up) say_ended_in_the_middle(task);
    return;
  }
  if (task.told_to_stop || status_ == Status::kFinishing) return;
  const std::string what = fmt::format("{} (pid {}) {}", name, task.process->pid(), exit.describe());
  if (goes_on_ && status_ == Status::kRunning && task.restarts < options_.max_restarts) {
    ++task.restarts;
    say(fmt::format("{}; restarting it ({} of {})", what, task.restarts, options_.max_restarts));
    return start(index);
  }
  if (status_ == Status::kRunning && goes_on_without(task)) {
    last_survived_failure_ = index;
    return output_->warn(what + "; the job goes on without it");
  }
  // The job was aborted: its tasks on Muster end by themselves, with 1. What else they die of is news.
  if (aborted() && exit.code == 1) return;
  if (first_failure_) return say(what);
  first_failure_ = index;
  if (status_ != Status::kRunning) return say(what);
  output_->warn(what + (any_running(/*workers_only=*/false) ? "; stopping the others" : ""));
  begin_stopping(exit.as_exit_code(), /*at_once=*/false);
}

}  // namespace muster::detail
