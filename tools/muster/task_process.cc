#include "muster/task_process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {
namespace {

// Times 16 KiB: more than a pipe holds, so that all that a task wrote before it ended is read.
constexpr int kReadsAtOnce = 16;

std::array<int, 2> make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) raise<SystemError>("no pipe: {}", describe_errno(errno));
  return ends;
}

bool handles(pid_t process, int number) {
  std::ifstream status(fmt::format("/proc/{}/status", process));
  const std::string caught = "SigCgt:";
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(caught)) continue;
    return (std::stoull(line.substr(caught.size()), nullptr, 16) >> (number - 1) & 1) != 0;
  }
  return false;
}

}  // namespace

std::string Exit::describe() const {
  if (signal == 0) return fmt::format("exited with code {}", code);
  const char* name = sigabbrev_np(signal);
  return fmt::format("was killed by signal {} (SIG{})", signal, name != nullptr ? name : "?");
}

TaskProcess::TaskProcess(const Options& options) {
  const std::string& program = options.program;
  auto argument_text = options.arguments;
  auto variable_text = options.environment.assignments();
  const auto argv = exec_pointers(argument_text);
  const auto envp = exec_pointers(variable_text);
  const auto out = make_pipe();
  const auto err = make_pipe();
  const auto in = options.has_input ? make_pipe() : std::array<int, 2>{-1, -1};
  const auto failure = make_pipe();  // carries errno when exec fails
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const int core : options.cores) CPU_SET(core, &cores);
  const pid_t launcher = getpid();

  // Between fork and exec only calls that are safe in a process whose other threads are gone.
  pid_ = fork();
  if (pid_ == 0) {
    // Without a terminal, ssh can't ask anybody, and says so instead.
    if (options.has_input) {
      setsid();
    } else {
      setpgid(0, 0);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(126);  // it died before we asked
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    if (!options.cores.empty()) sched_setaffinity(0, sizeof(cores), &cores);
    dup2(options.has_input ? in[0] : open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    execve(program.c_str(), argv.data(), envp.data());
    const int error = errno;
    (void)!write(failure[1], &error, sizeof(error));
    _exit(127);
  }
  const int fork_error = errno;
  for (const int fd : {out[1], err[1], in[0], failure[1]}) {
    if (fd >= 0) ::close(fd);
  }
  int error = 0;
  if (pid_ > 0) {
    if (!options.has_input) setpgid(pid_, pid_);  // whichever of the two comes first
    const ssize_t size = read(failure[0], &error, sizeof(error));
    if (size != sizeof(error)) error = 0;
    if (error != 0) waitpid(pid_, nullptr, 0);
  } else {
    error = fork_error;
  }
  ::close(failure[0]);
  if (error != 0) {
    for (const int fd : {out[0], err[0], in[1]}) {
      if (fd >= 0) ::close(fd);
    }
    pid_ = -1;
    raise<SystemError>("{} can't be started: {}", program, describe_errno(error));
  }
  pipes_ = {out[0], err[0]};
  for (const int fd : pipes_) fcntl(fd, F_SETFL, O_NONBLOCK);
  input_ = in[1];
  if (input_ >= 0) fcntl(input_, F_SETFL, O_NONBLOCK);
}

TaskProcess::~TaskProcess() {
  if (running()) {
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (int stream = 0; stream < 2; ++stream) close_pipe(stream);
  close_input();
}

void TaskProcess::close_pipe(int stream) {
  int& fd = pipes_.at(static_cast<size_t>(stream));
  if (fd >= 0) ::close(fd);
  fd = -1;
}

bool TaskProcess::read_pipe(int stream, const std::function<void(std::string_view bytes)>& take) {
  std::array<char, 16384> buffer{};
  for (int round = 0; round < kReadsAtOnce; ++round) {
    const ssize_t size = read(pipe(stream), buffer.data(), buffer.size());
    if (size > 0) {
      take({buffer.data(), static_cast<size_t>(size)});
      continue;
    }
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    close_pipe(stream);
    return false;
  }
  return true;
}

bool TaskProcess::write_input(std::string_view text) const {
  const ssize_t size = write(input_, text.data(), text.size());
  return size < 0 ? errno != EAGAIN : size == static_cast<ssize_t>(text.size());
}

void TaskProcess::close_input() {
  if (input_ >= 0) ::close(input_);
  input_ = -1;
}

void TaskProcess::signal(int number) const {
  if (!running()) return;
  kill(-pid_, number);
  kill(-pid_, SIGCONT);
}

void TaskProcess::signal_handlers(int number) const {
  if (!running()) return;
  bool is_handled = false;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const auto process = parse_integer(entry.path().filename().string());
    if (!process || getpgid(static_cast<pid_t>(*process)) != pid_) continue;
    if (!handles(static_cast<pid_t>(*process), number)) continue;
    is_handled = true;
    kill(static_cast<pid_t>(*process), number);
  }
  if (!is_handled) signal(number);
}

bool TaskProcess::reap() {
  if (!running()) return true;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
  exit_ = WIFSIGNALED(status) ? Exit{.code = 0, .signal = WTERMSIG(status)}
                              : Exit{.code = WEXITSTATUS(status), .signal = 0};
  kill(-pid_, SIGKILL);
  return true;
}

}  // namespace muster::detail
