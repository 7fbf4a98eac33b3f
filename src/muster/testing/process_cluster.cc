#include "muster/testing/process_cluster.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "muster/base/text.h"
#include "muster/cluster/identity.h"

namespace muster::detail::testing {
namespace {

// A test run that was itself started by a launcher must not lend its tasks that identity.
Environment clean_environment() {
  auto environment = Environment::of_process();
  forget_launchers(environment);
  return environment;
}

}  // namespace

std::string self_path() {
  return std::filesystem::read_symlink("/proc/self/exe");
}

std::string beside_self(const std::string& program) {
  return std::filesystem::path(self_path()).parent_path() / program;
}

Deadline soon() {
  return Deadline::after(std::chrono::seconds(90));
}

int ProcessCluster::start(const Program& program) {
  auto environment = clean_environment();
  for (const auto& [name, value] : program.environment) environment.set(name, value);
  auto assignments = environment.assignments();
  auto command = program.command;
  const auto argv = exec_pointers(command);
  const auto envp = exec_pointers(assignments);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) raise<SystemError>("no pipe: {}", describe_errno(errno));
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) raise<SystemError>("no process: {}", describe_errno(errno));
  if (child == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126);
    // A test run in the background, or under nohup, ignores some: not so its processes.
    for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGUSR1, SIGUSR2})
      ::signal(number, SIG_DFL);
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    execvpe(argv[0], argv.data(), envp.data());
    dprintf(STDERR_FILENO, "exec of %s failed: %s\n", argv[0], strerrordesc_np(errno));
    _exit(127);
  }
  setpgid(child, child);
  close(ends[1]);
  auto process = std::make_unique<Process>();
  process->pid = child;
  process->pipe = ends[0];
  process->name = program.command.front();
  processes_.push_back(std::move(process));
  Process& started = *processes_.back();
  started.reader = std::thread([this, &started] { read_output(started); });
  return static_cast<int>(processes_.size()) - 1;
}

void ProcessCluster::read_output(Process& process) {
  std::array<char, 4096> buffer{};
  while (true) {
    const ssize_t size = read(process.pipe, buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    const MutexLock lock(mutex_);
    if (size > 0) process.output.append(buffer.data(), static_cast<size_t>(size));
    if (size <= 0) process.closed = true;
    changed_.notify_all();
    if (size <= 0) return;
  }
}

pid_t ProcessCluster::pid(int process) const {
  return at(process).pid;
}

void ProcessCluster::signal(int process, int number) {
  kill(at(process).pid, number);
}

void ProcessCluster::signal_group(int process, int number) {
  kill(-at(process).pid, number);
}

void ProcessCluster::wait_for_output(int index, const std::string& text, Deadline deadline) {
  Process& process = at(index);
  MutexLock lock(mutex_);
  while (process.output.find(text) == std::string::npos) {
    if (process.closed || deadline.expired()) {
      raise<DeadlineExceeded>("process {} ({}) {} without printing '{}'; its output:\n{}", index,
                              process.name, process.closed ? "ended" : "went on past the deadline", text,
                              process.output);
    }
    changed_.wait_until(lock, deadline.time_point());
  }
}

ProcessCluster::Result ProcessCluster::wait(int index, Deadline deadline) {
  Process& process = at(index);
  while (!process.reaped) {
    int status = 0;
    const pid_t reaped = waitpid(process.pid, &status, WNOHANG);
    if (reaped == process.pid) {
      process.reaped = true;
      process.result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      process.result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      kill(-process.pid, SIGKILL);  // what it left behind in its group
      break;
    }
    if (deadline.expired()) {
      kill(-process.pid, SIGKILL);
      waitpid(process.pid, &status, 0);
      process.reaped = true;
      process.result.signal = SIGKILL;
      raise<DeadlineExceeded>("process {} ({}) did not end in time; its output:\n{}", index, process.name,
                              output(index));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  // A grandchild may hold the pipe open; what has come so far is what there is.
  MutexLock lock(mutex_);
  const auto end_of_output = Deadline::after(std::chrono::seconds(2));
  while (!process.closed && !end_of_output.expired()) changed_.wait_until(lock, end_of_output.time_point());
  process.result.output = process.output;
  return process.result;
}

std::string ProcessCluster::output(int index) const {
  const MutexLock lock(mutex_);
  return at(index).output;
}

ProcessCluster::~ProcessCluster() {
  for (auto& process : processes_) {
    if (!process->reaped) {
      kill(-process->pid, SIGKILL);
      waitpid(process->pid, nullptr, 0);
    }
    // Whoever still holds the pipe's other end was in the group, and is dead; else the read would wait for
    // ever.
    process->reader.join();
    close(process->pipe);
  }
}

std::vector<pid_t> processes_mentioning(const std::string& text) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto pid = parse_integer(entry.path().filename().string());
    if (!pid || *pid == getpid()) continue;
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    std::string command;
    char c = 0;
    while (file.get(c)) command += c;  // one that ends meanwhile gives an error, which is an end too
    if (command.find(text) != std::string::npos) found.push_back(static_cast<pid_t>(*pid));
  }
  return found;
}

}  // namespace muster::detail::testing
