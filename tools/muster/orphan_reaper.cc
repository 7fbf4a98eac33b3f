#include "muster/orphan_reaper.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <set>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

struct Entry {
  char what;  // '+' or '-'
  pid_t group;
};

constexpr int kGraceMilliseconds = 2000;
constexpr int kStepMilliseconds = 20;

// Only system calls and a set: nothing here depends on what the launcher was doing.
[[noreturn]] void run_reaper(int pipe) {
  std::set<pid_t> groups;
  Entry entry{};
  while (true) {
    const ssize_t size = read(pipe, &entry, sizeof(entry));
    if (size < 0 && errno == EINTR) continue;
    if (size != sizeof(entry)) break;
    if (entry.what == '+') groups.insert(entry.group);
    if (entry.what == '-') groups.erase(entry.group);
  }
  for (const pid_t group : groups) {
    kill(-group, SIGTERM);
    kill(-group, SIGCONT);
  }
  for (int waited = 0; !groups.empty() && waited < kGraceMilliseconds; waited += kStepMilliseconds) {
    std::erase_if(groups, [](pid_t group) { return kill(-group, 0) != 0; });
    usleep(kStepMilliseconds * 1000);
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  _exit(0);
}

}  // namespace

OrphanReaper::OrphanReaper() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) raise<SystemError>("no pipe: {}", describe_errno(errno));
  pid_ = fork();
  if (pid_ < 0) raise<SystemError>("no process: {}", describe_errno(errno));
  if (pid_ == 0) {
    setsid();  // neither the terminal's signals nor its end reach it
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) signal(number, SIG_IGN);
    // Whoever reads the launcher's output must not wait for us.
    const int null = open("/dev/null", O_RDWR);
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null, fd);
    close_range(3, static_cast<unsigned>(ends[0]) - 1, 0);
    close_range(static_cast<unsigned>(ends[0]) + 1, ~0U, 0);
    run_reaper(ends[0]);
  }
  close(ends[0]);
  pipe_ = ends[1];
}

OrphanReaper::~OrphanReaper() {
  close(pipe_);
  waitpid(pid_, nullptr, 0);
}

void OrphanReaper::watch(pid_t group) {
  write('+', group);
}

void OrphanReaper::forget(pid_t group) {
  write('-', group);
}

void OrphanReaper::write(char what, pid_t group) const {
  const Entry entry = {what, group};
  (void)!::write(pipe_, &entry, sizeof(entry));  // smaller than PIPE_BUF: never in pieces
}

}  // namespace muster::detail
