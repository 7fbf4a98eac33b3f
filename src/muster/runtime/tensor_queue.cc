#include "muster/runtime/tensor_queue.h"

#include <chrono>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/runtime/stall_warning.h"

namespace muster::detail {

namespace {

constexpr auto kLookForAbort = std::chrono::milliseconds(50);

}  // namespace

void TensorQueue::check_options(int64_t capacity, const std::vector<int64_t>& types) const {
  if (capacity != capacity_ || types != types_)
    raise<InvalidArgument>("the queue '{}' has a capacity of {} here; another graph says {}, or other types",
                           name_, capacity_, capacity);
}

void TensorQueue::wait(MutexLock& lock, const char* for_what, const std::function<bool()>& is_ready,
                       const std::function<void()>& check) {
  StallWarning warning(stall_warning_);
  while (!is_ready() && !is_closed_) {
    changed_.wait_for(lock, kLookForAbort);
    check();
    if (warning.is_due())
      log_warning("a run waits for {} in the queue '{}', for {} now", for_what, name_,
                  format_seconds(stall_warning_));
  }
}

void TensorQueue::put(const Element& element, const std::function<void()>& check) {
  Element copies;
  for (size_t i = 0; i < element.size(); ++i) {
    if (!element[i].defined() || static_cast<int64_t>(element[i].scalar_type()) != types_[i])
      raise<InvalidArgument>("tensor {} of an element of the queue '{}' is of another type", i, name_);
    copies.push_back(element[i].detach().clone());
  }
  MutexLock lock(mutex_);
  wait(
      lock, "room",
      [this] {
        mutex_.assert_held();
        return static_cast<int64_t>(elements_.size()) < capacity_;
      },
      check);
  if (is_closed_) raise<Aborted>("the queue '{}' is closed", name_);
  elements_.push_back(std::move(copies));
  changed_.notify_all();
}

TensorQueue::Element TensorQueue::take(const std::function<void()>& check) {
  MutexLock lock(mutex_);
  wait(
      lock, "an element",
      [this] {
        mutex_.assert_held();
        return !elements_.empty();
      },
      check);
  if (elements_.empty()) raise<Aborted>("the queue '{}' is closed and empty", name_);
  Element element = std::move(elements_.front());
  elements_.pop_front();
  changed_.notify_all();
  return element;
}

int64_t TensorQueue::size() const {
  const MutexLock lock(mutex_);
  return static_cast<int64_t>(elements_.size());
}

void TensorQueue::close() {
  const MutexLock lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
}

}  // namespace muster::detail
