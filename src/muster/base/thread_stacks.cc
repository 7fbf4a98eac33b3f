#include "muster/base/thread_stacks.h"

#include <execinfo.h>
#include <semaphore.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/symbols.h"
#include "muster/deadline.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;

constexpr size_t kDeepest = 128;  // frames

// Of StackSlot::asked, beside the number of a thread.
constexpr pid_t kNobody = 0;
constexpr pid_t kTaking = -1;
constexpr pid_t kTaken = -2;

// Where a thread leaves its stack. A handler of signals may use neither locks nor the heap, and may run late:
// so slots are never freed, and are given to one batch of threads after the other.
struct StackSlot {
  std::atomic<pid_t> asked{kNobody};
  int depth = 0;
  uintptr_t interrupted_at = 0;  // where the thread was when the signal came
  std::array<void*, kDeepest> frames{};
};
constinit std::array<StackSlot, 64> stack_slots;
constinit sem_t quit_raised{};  // for each SIGQUIT, and to end the thread that waits for them
constinit std::atomic<pid_t> watched_process{0};

int sample_signal() {
  return SIGRTMIN + 7;
}

uintptr_t program_counter(const void* context) {
#if defined(__x86_64__)
  const auto& registers = static_cast<const ucontext_t*>(context)->uc_mcontext;
  return static_cast<uintptr_t>(registers.gregs[REG_RIP]);
#elif defined(__aarch64__)
  const auto& registers = static_cast<const ucontext_t*>(context)->uc_mcontext;
  return registers.pc;
#else
  (void)context;
  return 0;
#endif
}

void on_sample(int /*signal*/, siginfo_t* /*info*/, void* context) {
  const int error = errno;
  const pid_t self = gettid();
  for (StackSlot& slot : stack_slots) {
    pid_t expected = self;
    if (!slot.asked.compare_exchange_strong(expected, kTaking)) continue;
    slot.depth = backtrace(slot.frames.data(), static_cast<int>(slot.frames.size()));
    slot.interrupted_at = program_counter(context);
    slot.asked = kTaken;
    break;
  }
  errno = error;
}

// A fork has not the thread that would print: the signal ends it, as it would have without us.
void on_quit(int number) {
  const int error = errno;
  if (getpid() == watched_process) {
    sem_post(&quit_raised);
  } else {
    signal(number, SIG_DFL);
    kill(getpid(), number);
  }
  errno = error;
}

bool has_default_action(int number) {
  struct sigaction action {};
  return sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_DFL;
}

struct ThreadStatus {
  pid_t id = 0;
  std::string name;
  std::string state;    // "sleeping"
  bool blocks = false;  // our signal
};

// Read before the thread is asked, which wakes it. Without a state when the thread has ended.
ThreadStatus status_of(pid_t id) {
  ThreadStatus thread = {.id = id};
  std::ifstream file(fmt::format("/proc/self/task/{}/status", id));
  for (std::string line; std::getline(file, line);) {  // "Name:\tmnist", "State:\tS (sleeping)"
    const std::string value = line.substr(std::min(line.find('\t'), line.size()));
    if (line.starts_with("Name:")) thread.name = value.substr(1);
    if (line.starts_with("State:")) thread.state = value.substr(4, value.size() - 5);
    if (line.starts_with("SigBlk:"))
      thread.blocks = (std::stoull(value, nullptr, 16) >> (sample_signal() - 1) & 1) != 0;
  }
  return thread;
}

std::vector<pid_t> other_threads() {
  std::vector<pid_t> ids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const pid_t id = std::stoi(entry.path().filename());
    if (id != gettid()) ids.push_back(id);
  }
  std::ranges::sort(ids);
  return ids;
}

// The slot that the thread was asked to use; null when it can't be asked. A slot in which the stack is still
// being taken, for a thread that was given up, is left alone.
StackSlot* ask(const ThreadStatus& thread, std::span<StackSlot>& slots) {
  if (thread.blocks || thread.state.empty()) return nullptr;
  while (!slots.empty() && slots.front().asked == kTaking) slots = slots.subspan(1);
  if (slots.empty()) return nullptr;
  StackSlot& slot = slots.front();
  slot.asked = thread.id;
  if (tgkill(getpid(), thread.id, sample_signal()) != 0) {
    slot.asked = kNobody;
    return nullptr;
  }
  slots = slots.subspan(1);
  return &slot;
}

std::string frames_of(const StackSlot& slot, Symbols& symbols) {
  const std::span frames(slot.frames.data(), static_cast<size_t>(slot.depth));
  auto first = std::ranges::find(frames, slot.interrupted_at,
                                 [](const void* frame) { return reinterpret_cast<uintptr_t>(frame); });
  const bool is_found = first != frames.end();
  if (!is_found) first = frames.begin() + std::min<std::ptrdiff_t>(1, slot.depth);  // without the handler
  std::string text;
  for (auto frame = first; frame != frames.end(); ++frame) {
    // A frame that has called another is known by where that returns to, which may be in the next function.
    const bool has_called = frame != first || !is_found;
    text +=
        fmt::format("    {}\n", symbols.describe(static_cast<const char*>(*frame) - (has_called ? 1 : 0)));
  }
  if (frames.size() == kDeepest) text += "    ... and more\n";
  return text;
}

// What follows a thread's state. The slot is free again, unless its thread is about to fill it.
std::string answer_of(const ThreadStatus& thread, StackSlot* slot, Symbols& symbols) {
  if (thread.blocks) return fmt::format(", blocks signal {}: no stack\n", sample_signal());
  if (slot == nullptr) {
    const bool is_there = std::filesystem::exists(fmt::format("/proc/self/task/{}", thread.id));
    return is_there ? ", there was no room for its stack\n" : ", has ended since\n";
  }
  pid_t expected = thread.id;
  if (slot->asked.compare_exchange_strong(expected, kNobody) || expected != kTaken)
    return fmt::format(", did not answer within {}\n", format_seconds(ThreadStacks::kAnswerWithin));
  const std::string frames = frames_of(*slot, symbols);
  slot->asked = kNobody;
  return ":\n" + frames;
}

// At most as many threads as there are slots, all asked at once.
void print_batch(std::span<const pid_t> ids, Symbols& symbols) {
  std::vector<ThreadStatus> threads;
  for (const pid_t id : ids) threads.push_back(status_of(id));
  std::vector<StackSlot*> asked;
  std::span<StackSlot> slots(stack_slots);
  for (const auto& thread : threads) asked.push_back(ask(thread, slots));

  const auto deadline = Deadline::after(ThreadStacks::kAnswerWithin);
  const auto is_settled = [](const StackSlot* slot) { return slot == nullptr || slot->asked == kTaken; };
  while (!std::ranges::all_of(asked, is_settled) && !deadline.expired()) std::this_thread::sleep_for(1ms);

  for (size_t i = 0; i < threads.size(); ++i) {
    const ThreadStatus& thread = threads[i];
    if (thread.state.empty()) {
      write_lines(fmt::format("thread {} has ended\n", thread.id));
    } else {
      write_lines(fmt::format("thread {} '{}', {}{}", thread.id, thread.name, thread.state,
                              answer_of(thread, asked[i], symbols)));
    }
  }
}

}  // namespace

ThreadStacks::ThreadStacks() : whose_(program_invocation_short_name) {
  if (!has_default_action(SIGQUIT) || !has_default_action(sample_signal())) return;
  try {
    start();
  } catch (const std::system_error&) {
    return;  // who can't have this thread will soon miss another
  }
  struct sigaction sample {};
  sample.sa_sigaction = on_sample;
  sample.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  sigaction(sample_signal(), &sample, nullptr);
  struct sigaction quit {};
  quit.sa_handler = on_quit;
  quit.sa_flags = SA_RESTART | SA_ONSTACK;
  sigaction(SIGQUIT, &quit, nullptr);
}

// The thread takes none of the program's signals.
void ThreadStacks::start() {
  std::array<void*, 1> frame{};
  backtrace(frame.data(), 1);  // loads libgcc, which a handler must not do
  sem_init(&quit_raised, 0, 0);
  watched_process = getpid();
  sigset_t all_but_quit;
  sigset_t before;
  sigfillset(&all_but_quit);
  sigdelset(&all_but_quit, SIGQUIT);
  pthread_sigmask(SIG_SETMASK, &all_but_quit, &before);
  const std::shared_ptr<void> restore(nullptr,
                                      [&](void*) { pthread_sigmask(SIG_SETMASK, &before, nullptr); });
  thread_ = std::thread([this] { run(); });
}

ThreadStacks::~ThreadStacks() {
  if (!thread_.joinable()) return;
  struct sigaction now {};
  sigaction(SIGQUIT, nullptr, &now);
  if (now.sa_handler == on_quit) signal(SIGQUIT, SIG_DFL);
  is_over_ = true;
  sem_post(&quit_raised);
  thread_.join();
  // A thread that did not answer may have the signal still to come, and would end the process by it: ignoring
  // it takes it back.
  signal(sample_signal(), SIG_IGN);
  signal(sample_signal(), SIG_DFL);
}

void ThreadStacks::describe(std::string whose, std::function<std::string()> doing) {
  const MutexLock lock(mutex_);
  whose_ = std::move(whose);
  doing_ = std::move(doing);
}

void ThreadStacks::run() {
  pthread_setname_np(pthread_self(), "muster-stacks");
  for (;;) {
    while (sem_wait(&quit_raised) != 0) {  // a signal came in between
    }
    while (sem_trywait(&quit_raised) == 0) {  // once for all that have come by now
    }
    if (is_over_) return;
    try {
      print();
    } catch (const std::exception& error) {
      log_error("the stacks can't be printed: {}", error.what());
    }
  }
}

void ThreadStacks::print() {
  const auto ids = other_threads();
  std::string whose;
  {
    const MutexLock lock(mutex_);
    whose = whose_;
  }
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  write_lines(
      fmt::format("stacks of the {} threads of {} (pid {})\n"
                  "(the source of {}+0x5a1f: addr2line -Cfpe {} 0x5a1f)\n",
                  ids.size(), whose, getpid(), program.filename().string(), program.string()));
  Symbols symbols;
  const std::span<const pid_t> all(ids);
  for (size_t begin = 0; begin < all.size(); begin += stack_slots.size())
    print_batch(all.subspan(begin, std::min(stack_slots.size(), all.size() - begin)), symbols);
  std::string doing;
  {
    const MutexLock lock(mutex_);
    if (doing_) doing = doing_();
  }
  write_lines(fmt::format("end of the stacks of {}{}{}\n", whose, doing.empty() ? "" : ", which ", doing));
}

}  // namespace muster::detail
