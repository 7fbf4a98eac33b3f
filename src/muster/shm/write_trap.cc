#include "muster/shm/write_trap.h"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <csignal>
#include <mutex>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

// A handler of signals may use neither locks nor the heap: so the traps are a table of fixed size.
struct Slot {
  std::atomic<bool> taken{false};
  std::atomic<std::byte*> begin{nullptr};
  std::atomic<std::byte*> end{nullptr};  // nullptr: the trap is not set
  std::atomic<std::byte*> first{nullptr};
};
constinit std::array<Slot, 256> slots;
struct sigaction handler_before;

void hand_on(int signal, siginfo_t* info, void* context) {
  if ((handler_before.sa_flags & SA_SIGINFO) != 0) return handler_before.sa_sigaction(signal, info, context);
  if (handler_before.sa_handler == SIG_DFL || handler_before.sa_handler == SIG_IGN) {
    sigaction(SIGSEGV, &handler_before, nullptr);  // the instruction faults again, and this time for good
    if (info->si_code <= 0) std::raise(signal);    // but for a signal that somebody sent
    return;
  }
  handler_before.sa_handler(signal);
}

void on_fault(int signal, siginfo_t* info, void* context) {
  auto* const address = static_cast<std::byte*>(info->si_addr);
  for (Slot& slot : slots) {
    std::byte* const begin = slot.begin.load();
    std::byte* const end = slot.end.load();
    if (info->si_code != SEGV_ACCERR || address < begin || address >= end) continue;
    if (mprotect(begin, static_cast<size_t>(end - begin), PROT_READ | PROT_WRITE) != 0) break;
    std::byte* none = nullptr;
    slot.first.compare_exchange_strong(none, address);
    return;
  }
  hand_on(signal, info, context);
}

void install_handler() {
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &handler_before);
}

}  // namespace

WriteTrap::WriteTrap(std::byte* begin, size_t bytes) {
  static std::once_flag installed;
  std::call_once(installed, install_handler);
  for (slot_ = 0; slot_ < slots.size(); ++slot_) {
    if (!slots[slot_].taken.exchange(true)) break;
  }
  if (slot_ == slots.size()) raise<SystemError>("more than {} models of parameter servers", slots.size());
  Slot& slot = slots[slot_];
  slot.first = nullptr;
  slot.begin = begin;
  slot.end = begin + bytes;
}

WriteTrap::~WriteTrap() {
  slots[slot_].end = nullptr;
  slots[slot_].taken = false;
}

const std::byte* WriteTrap::first_write() const {
  return slots[slot_].first.load();
}

}  // namespace muster::detail
