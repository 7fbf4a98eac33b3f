#include "muster/runtime/rendezvous.h"

#include <utility>

#include "muster/base/error.h"

namespace muster::detail {

namespace {

// A step that has ended is remembered for so long, and values of one that never began are kept so long.
constexpr auto kKept = std::chrono::minutes(10);
constexpr auto kLookEvery = std::chrono::seconds(30);

}  // namespace

void StepValues::put(uint32_t key, c10::IValue value) {
  const MutexLock lock(mutex_);
  if (is_aborted_) return;
  if (!keys_.insert(key).second) raise<InvalidArgument>("the value {} of a step came twice", key);
  values_.emplace_back(key, std::move(value));
  changed_.notify_all();
}

void StepValues::abort(const StepStatus& reason) {
  const MutexLock lock(mutex_);
  if (is_aborted_) return;
  reason_ = reason;
  is_aborted_ = true;
  values_.clear();
  changed_.notify_all();
}

void StepValues::raise_aborted() const {
  const MutexLock lock(mutex_);
  reason_.raise_if_failed();
  MUSTER_CHECK(false, "a step was aborted without a reason");
}

StepValues::Values StepValues::take(bool may_wait, Deadline deadline) {
  MutexLock lock(mutex_);
  while (true) {
    reason_.raise_if_failed();
    if (!values_.empty() || !may_wait) return std::exchange(values_, {});
    if (deadline.expired()) raise<DeadlineExceeded>("no value came for a step in time");
    changed_.wait_until(lock, deadline.time_point());
  }
}

std::shared_ptr<StepValues> Rendezvous::step(uint64_t id) {
  const MutexLock lock(mutex_);
  forget_old();
  Entry& entry = steps_[id];
  if (!entry.values) entry = {std::make_shared<StepValues>(), Clock::now()};
  return entry.values;
}

void Rendezvous::put(uint64_t step, uint32_t key, c10::IValue value) {
  const auto values = [&]() -> std::shared_ptr<StepValues> {
    const MutexLock lock(mutex_);
    forget_old();
    const auto [found, is_new] = steps_.try_emplace(step);
    if (is_new) found->second = {std::make_shared<StepValues>(), Clock::now()};
    return found->second.values;
  }();
  if (values) values->put(key, std::move(value));
}

void Rendezvous::abort(uint64_t step, const StepStatus& reason) {
  const auto values = [&]() -> std::shared_ptr<StepValues> {
    const MutexLock lock(mutex_);
    const auto [found, is_new] = steps_.try_emplace(step);
    if (is_new) found->second = {std::make_shared<StepValues>(), Clock::now()};
    return found->second.values;
  }();
  if (values) values->abort(reason);
}

void Rendezvous::end(uint64_t step, bool has_failed) {
  const MutexLock lock(mutex_);
  if (has_failed) {
    steps_[step] = {nullptr, Clock::now()};
  } else {
    steps_.erase(step);
  }
}

void Rendezvous::forget_old() {
  const auto now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + kLookEvery;
  std::erase_if(steps_, [now](const auto& entry) {
    // Whoever runs a step has its values too.
    return now - entry.second.since > kKept && entry.second.values.use_count() <= 1;
  });
}

}  // namespace muster::detail
