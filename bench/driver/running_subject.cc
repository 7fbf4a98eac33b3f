#include "bench/driver/running_subject.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "muster/base/text.h"
#include "muster/find_program.h"

extern "C" {
#include <sys/pidfd.h>  // of glibc 2.36, which forgets to say that it is C
}

namespace muster::detail::bench {
namespace {

using namespace std::chrono_literals;

constexpr auto kTimeToQuit = 5s;
constexpr auto kTimeToTerminate = 3s;
constexpr auto kTimeForLastWords = 2s;
constexpr size_t kOutputKept = 8192;
constexpr size_t kLinesShown = 12;
constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGHUP};

Descriptor open_fifo(const std::filesystem::path& path) {
  if (mkfifo(path.c_str(), 0600) != 0)
    raise<SystemError>("the FIFO {} can't be made: {}", path.string(), describe_errno(errno));
  // For reading and writing: so we never wait for the rank to open it, and see no end when it closes it.
  const int fd = open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) raise<SystemError>("the FIFO {} can't be opened: {}", path.string(), describe_errno(errno));
  return Descriptor(fd);
}

bool is_readable(const Descriptor& descriptor) {
  pollfd wait = {.fd = descriptor.get(), .events = POLLIN, .revents = 0};
  return descriptor.get() >= 0 && poll(&wait, 1, 0) == 1;
}

void append_available(int fd, std::string& text) {
  std::array<char, 4096> buffer{};
  ssize_t size = 0;
  while ((size = read(fd, buffer.data(), buffer.size())) > 0)
    text.append(buffer.data(), static_cast<size_t>(size));
}

std::string last_lines(const std::string& output) {
  auto lines = split(output, '\n');
  std::erase(lines, "");
  if (lines.empty()) return "; it wrote nothing";
  const size_t skipped = lines.size() - std::min(lines.size(), kLinesShown);
  std::string text = "; its last lines:";
  for (size_t i = skipped; i < lines.size(); ++i) text += "\n    " + lines[i];
  return text;
}

std::string silent_ranks(const std::vector<std::string>& answers) {
  std::vector<size_t> silent;
  for (size_t rank = 0; rank < answers.size(); ++rank) {
    if (answers[rank].empty()) silent.push_back(rank);
  }
  return fmt::format("{} {}", silent.size() == 1 ? "rank" : "ranks", fmt::join(silent, ", "));
}

}  // namespace

Interrupted::Interrupted(int number)
    : std::runtime_error(fmt::format("stopped by SIG{}", sigabbrev_np(number))), signal_(number) {}

SignalWatch::SignalWatch() {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int number : kSignals) sigaddset(&mask, number);
  sigprocmask(SIG_BLOCK, &mask, nullptr);
  signal(SIGPIPE, SIG_IGN);
  fd_ = Descriptor(signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC));
}

void SignalWatch::check() const {
  signalfd_siginfo info{};
  if (read(fd_.get(), &info, sizeof(info)) == sizeof(info))
    throw Interrupted(static_cast<int>(info.ssi_signo));
}

RunningSubject::RunningSubject(SubjectCommand command, Options options, OrphanReaper& reaper,
                               const SignalWatch& signals)
    : command_(std::move(command)), timeout_(options.timeout), reaper_(reaper), signals_(signals) {
  std::filesystem::create_directories(options.folder);
  for (int rank = 0; rank < command_.ranks(); ++rank) {
    Rank& added = ranks_.emplace_back();
    added.in = open_fifo(options.folder / fmt::format("{}.in", rank));
    added.out = open_fifo(options.folder / fmt::format("{}.out", rank));
  }
  for (const auto& name : command_.without) options.environment.unset(name);
  for (const auto& [name, value] : command_.variables) options.environment.set(name, value);
  const auto search_path = options.environment.get("PATH").value_or("/usr/bin:/bin");
  for (auto arguments : command_.processes) {
    std::replace(arguments.begin(), arguments.end(), std::string("DIR"), options.folder.string());
    auto task = std::make_unique<TaskProcess>(
        TaskProcess::Options{.program = find_program(arguments.front(), search_path),
                             .arguments = arguments,
                             .environment = options.environment});
    watch_group(task->pid());
    Descriptor ended(pidfd_open(task->pid(), 0));
    processes_.push_back({.name = std::filesystem::path(arguments.front()).filename(),
                          .task = std::move(task),
                          .ended = std::move(ended)});
  }
}

RunningSubject::~RunningSubject() {
  if (!in_doubt_) {
    tell_to_quit();
    wait_for_end(Deadline::after(kTimeToQuit));
  }
  for (const auto& process : processes_) process.task->signal(SIGTERM);
  wait_for_end(Deadline::after(kTimeToTerminate));
  for (const auto& process : processes_) process.task->signal(SIGKILL);
  for (const auto& rank : ranks_) {
    if (rank.process.get() >= 0) pidfd_send_signal(rank.process.get(), SIGKILL, nullptr, 0);
  }
  processes_.clear();
  for (const pid_t group : groups_) reaper_.forget(group);
}

void RunningSubject::watch_group(pid_t group) {
  if (std::find(groups_.begin(), groups_.end(), group) != groups_.end()) return;
  reaper_.watch(group);
  groups_.push_back(group);
}

void RunningSubject::await_ready() {
  const auto answers = collect("start");
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const auto pid = answers[i].starts_with("ready ") ? parse_integer(answers[i].substr(6)) : std::nullopt;
    if (!pid) fail(fmt::format("rank {} said '{}' instead of 'ready' and its process id", i, answers[i]));
    ranks_[i].pid = static_cast<pid_t>(*pid);
    ranks_[i].process = Descriptor(pidfd_open(ranks_[i].pid, 0));
    if (const pid_t group = getpgid(ranks_[i].pid); group > 0) watch_group(group);
  }
  stop_if_it_spins();
}

void RunningSubject::stop_if_it_spins() {
  for (const auto& rank : ranks_) {
    if (command_.spins) pidfd_send_signal(rank.process.get(), SIGSTOP, nullptr, 0);
  }
}

void RunningSubject::go_on() {
  for (const auto& rank : ranks_) {
    if (command_.spins) pidfd_send_signal(rank.process.get(), SIGCONT, nullptr, 0);
  }
}

std::vector<std::string> RunningSubject::ask(const std::string& command) {
  const std::string line = command + "\n";
  go_on();
  for (const auto& rank : ranks_) (void)!write(rank.in.get(), line.data(), line.size());
  auto answers = collect(fmt::format("answer '{}'", command));
  stop_if_it_spins();
  return answers;
}

void RunningSubject::reject(const std::string& command, const std::vector<std::string>& answers) const {
  raise<SubjectFailed>("{}: no samples in the answers to '{}': {}", command_.name(), command,
                       fmt::join(answers, "; "));
}

std::vector<std::string> RunningSubject::collect(const std::string& to_what) {
  in_doubt_ = true;
  const auto deadline = Deadline::after(timeout_);
  std::vector<std::string> answers(ranks_.size());
  while (true) {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (!answers[i].empty()) continue;
      std::string& received = ranks_[i].received;
      append_available(ranks_[i].out.get(), received);
      if (const size_t end = received.find('\n'); end != std::string::npos) {
        answers[i] = received.substr(0, end);
        received.erase(0, end + 1);
      }
    }
    check_errors(answers, to_what);
    if (std::find(answers.begin(), answers.end(), "") == answers.end()) break;
    check_alive(answers, to_what);
    if (deadline.expired())
      fail(fmt::format("{} did not {} within {}", silent_ranks(answers), to_what, format_seconds(timeout_)));
    wait_for_answers(deadline);
    signals_.check();
  }
  in_doubt_ = false;
  return answers;
}

// Without waiting for the other ranks: they may be waiting for this one, in vain.
void RunningSubject::check_errors(const std::vector<std::string>& answers, const std::string& to_what) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (answers[i].starts_with("error"))
      fail(fmt::format("rank {} was to {} and said '{}'", i, to_what, answers[i]));
  }
}

void RunningSubject::check_alive(const std::vector<std::string>& answers, const std::string& to_what) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (is_readable(ranks_[i].process))
      fail(fmt::format("rank {} (pid {}) ended when it was to {}", i, ranks_[i].pid, to_what));
  }
  for (const auto& process : processes_) {
    if (is_readable(process.ended)) fail(fmt::format("{} did not {}", silent_ranks(answers), to_what));
  }
}

// What the processes still have to say is worth a moment.
void RunningSubject::fail(const std::string& what) {
  in_doubt_ = true;
  wait_for_end(Deadline::after(kTimeForLastWords));
  std::string ends;
  for (const auto& process : processes_) {
    if (process.task->exit()) ends += fmt::format("; {} {}", process.name, process.task->exit()->describe());
  }
  raise<SubjectFailed>("{}: {}{}{}", command_.name(), what, ends, last_lines(output_));
}

void RunningSubject::wait_for_answers(Deadline deadline) {
  std::vector<int> descriptors = {signals_.descriptor()};
  for (const auto& rank : ranks_) {
    descriptors.push_back(rank.out.get());
    descriptors.push_back(rank.process.get());
  }
  poll_with_processes(std::move(descriptors), deadline);
}

void RunningSubject::wait_for_end(Deadline deadline) {
  while (!all_ended() && !deadline.expired()) poll_with_processes({}, deadline);
  read_output();
}

void RunningSubject::poll_with_processes(std::vector<int> descriptors, Deadline deadline) {
  for (const auto& process : processes_) {
    if (process.task->running()) descriptors.push_back(process.ended.get());
    for (int stream = 0; stream < 2; ++stream) descriptors.push_back(process.task->pipe(stream));
  }
  std::vector<pollfd> waits;
  for (const int fd : descriptors)
    waits.push_back({.fd = fd, .events = POLLIN, .revents = 0});  // -1 is passed over
  const auto next = deadline.earlier(Deadline::after(1s));
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next.remaining());
  poll(waits.data(), waits.size(), static_cast<int>(wait.count()));
  read_output();
}

void RunningSubject::read_output() {
  for (const auto& process : processes_) {
    for (int stream = 0; stream < 2; ++stream) {
      if (process.task->pipe(stream) >= 0)
        process.task->read_pipe(stream, [&](std::string_view bytes) { output_ += bytes; });
    }
  }
  if (output_.size() > kOutputKept) output_.erase(0, output_.size() - kOutputKept);
}

bool RunningSubject::all_ended() {
  bool all = true;
  for (const auto& process : processes_) all &= process.task->reap();
  return all;
}

std::vector<pid_t> RunningSubject::pids() const {
  std::vector<pid_t> pids;
  for (const auto& rank : ranks_) pids.push_back(rank.pid);
  return pids;
}

void RunningSubject::tell_to_quit() {
  if (std::exchange(told_to_quit_, true)) return;
  go_on();
  for (const auto& rank : ranks_) (void)!write(rank.in.get(), "quit\n", 5);
}

}  // namespace muster::detail::bench
