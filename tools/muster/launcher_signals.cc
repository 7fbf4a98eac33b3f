#include "muster/launcher_signals.h"

#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <utility>

#include <fmt/format.h>

namespace muster::detail {
namespace {

bool is_ignored(int number) {
  struct sigaction action {};
  return sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

// A signal that is blocked would be read from the descriptor even where it is ignored. SIGPIPE is blocked
// only: a write to a reader who is gone then fails, and the tasks find it as it was.
LauncherSignals::LauncherSignals(std::function<void(bool stops)> suspend)
    : suspend_(std::move(suspend)), outlives_readers_(is_ignored(SIGPIPE)) {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int number : kNumbers) {
    if (!is_ignored(number)) sigaddset(&mask, number);
  }
  if (!is_ignored(SIGTSTP)) sigaddset(&mask, SIGTSTP);
  signal(SIGCHLD, SIG_DFL);  // where it is ignored, nobody could tell how a task ended
  sigaddset(&mask, SIGCHLD);
  descriptor_ = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
  sigaddset(&mask, SIGPIPE);
  sigprocmask(SIG_BLOCK, &mask, nullptr);
}

LauncherSignals::~LauncherSignals() {
  close(descriptor_);
}

std::optional<int> LauncherSignals::next() const {
  signalfd_siginfo info{};
  while (read(descriptor_, &info, sizeof(info)) == sizeof(info)) {
    const auto number = static_cast<int>(info.ssi_signo);
    if (number == SIGTSTP) {
      if (suspend_) suspend_(/*stops=*/true);
      ::raise(SIGSTOP);
      if (suspend_) suspend_(/*stops=*/false);
    } else if (number != SIGCHLD) {
      return number;
    }
  }
  return std::nullopt;
}

bool LauncherSignals::is_for_tasks(int number) {
  return number == SIGUSR1 || number == SIGUSR2 || number == SIGQUIT;
}

std::string signal_name(int number) {
  return fmt::format("SIG{}", sigabbrev_np(number));
}

}  // namespace muster::detail
