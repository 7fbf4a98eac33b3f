#include "muster/base/wait_registry.h"

#include <fmt/format.h>

#include "muster/base/text.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

constexpr auto kWorthTelling = 1s;

thread_local WaitInProgress* innermost_wait = nullptr;

}  // namespace

std::vector<Wait> WaitRegistry::waits() {
  std::vector<Wait> all;
  const MutexLock lock(mutex_);
  for (auto& [id, wait] : waits_) {
    if (wait.shown) ++wait.looks;
    all.push_back(wait);
    if (wait.main && call_.name != nullptr && !call_.ended) all.back().inside = text_of(call_);
  }
  for (const auto& [owner, held] : held_) all.insert(all.end(), held.begin(), held.end());
  return all;
}

std::string WaitRegistry::doing() const {
  MutexLock lock(mutex_);
  if (call_.name == nullptr) {
    const auto otherwise = otherwise_;
    lock.unlock();
    return otherwise ? otherwise() : "";
  }
  return fmt::format("{} {} since {}", call_.ended ? "out of" : "in", text_of(call_),
                     format_seconds(Clock::now() - call_.since));
}

std::string WaitRegistry::describe() {
  std::vector<std::string> parts;
  for (const Wait& wait : waits()) {
    if (!wait.of.empty()) continue;
    const WaitFor& wait_for = wait.wait_for;
    parts.push_back(fmt::format("waits in {}{}{} since {}", wait.inside.empty() ? wait_for.what : wait.inside,
                                wait_for.tasks.empty() ? "" : " for ", fmt::join(wait_for.tasks, ", "),
                                format_seconds(Clock::now() - wait.since)));
  }
  if (parts.empty()) {
    const std::string does = doing();
    return does.empty() ? "" : "is " + does;
  }
  return fmt::format("{}", fmt::join(parts, ", and "));
}

void WaitRegistry::set_doing_otherwise(std::function<std::string()> otherwise) {
  const MutexLock lock(mutex_);
  otherwise_ = std::move(otherwise);
}

void WaitRegistry::set_held(const void* owner, std::vector<Wait> held) {
  const MutexLock lock(mutex_);
  if (held.empty()) {
    held_.erase(owner);
  } else {
    held_[owner] = std::move(held);
  }
}

WaitRegistry::Call WaitRegistry::begin(const char* name, int64_t number) {
  const auto now = Clock::now();
  const MutexLock lock(mutex_);
  return std::exchange(call_, {.name = name, .number = number, .since = now});
}

// Back to the call around it, if there is one; else the last one stays, as over.
void WaitRegistry::end(const Call& outer) {
  const auto now = Clock::now();
  const MutexLock lock(mutex_);
  if (outer.name != nullptr && !outer.ended) {
    call_ = outer;
  } else {
    call_.ended = true;
    call_.since = now;
  }
}

void WaitRegistry::set(Wait wait) {
  const MutexLock lock(mutex_);
  const uint64_t id = wait.id;
  waits_[id] = std::move(wait);
}

uint64_t WaitRegistry::next_id() {
  const MutexLock lock(mutex_);
  return ++last_id_;
}

void WaitRegistry::remove(uint64_t id) {
  const MutexLock lock(mutex_);
  waits_.erase(id);
}

std::string WaitRegistry::text_of(const Call& call) {
  return call.number < 0 ? std::string(call.name) : fmt::format("{} {}", call.name, call.number);
}

const std::atomic<bool>* WaitRegistry::set_main_waits(const std::atomic<bool>* main_waits) {
  const MutexLock lock(mutex_);
  const auto before = std::exchange(main_waits_[std::this_thread::get_id()], main_waits);
  if (main_waits == nullptr) main_waits_.erase(std::this_thread::get_id());
  return before;
}

bool WaitRegistry::main_waits_for_us() const {
  const MutexLock lock(mutex_);
  const auto found = main_waits_.find(std::this_thread::get_id());
  return found != main_waits_.end() && found->second->load();
}

WaitInProgress::WaitInProgress(WaitRegistry* registry)
    : registry_(registry), outer_(std::exchange(innermost_wait, this)) {
  if (outer_ != nullptr) outer_->withdraw();
}

WaitInProgress::~WaitInProgress() {
  innermost_wait = outer_;
  withdraw();
  if (outer_ != nullptr && outer_->is_shown_) outer_->tell();
}

// What it waits for has changed: it begins again.
void WaitInProgress::withdraw() {
  if (id_ != 0) registry_->remove(id_);
  id_ = 0;
  looks_ = 0;
}

void WaitInProgress::look() {
  if (registry_ == nullptr) return;
  const auto now = Clock::now();
  if (looks_++ == 0) since_ = now;
  if (now - since_ >= kWorthTelling) tell();
}

void WaitInProgress::show() {
  if (registry_ == nullptr) return;
  is_shown_ = true;
  since_ = Clock::now();
  tell();
}

void WaitInProgress::tell() {
  if (id_ == 0) id_ = registry_->next_id();
  const bool for_main = registry_->main_waits_for_us();
  registry_->set({.id = id_,
                  .wait_for = describe(),
                  .main = main_ || for_main || registry_->is_main(),
                  .looks = looks_,
                  .shown = is_shown_ && looks_ == 0,
                  .since = since_});
}

void look_at_wait() {
  if (innermost_wait != nullptr) innermost_wait->look();
}

void show_wait() {
  if (innermost_wait != nullptr) innermost_wait->show();
}

void wait_gets_on() {
  if (innermost_wait != nullptr) innermost_wait->get_on();
}

}  // namespace muster::detail
