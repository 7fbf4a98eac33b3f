#include "muster/collective/operation_queue.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "muster/base/start_thread.h"

namespace muster::detail {

void OperationQueue::stop() {
  std::thread thread;
  std::deque<std::shared_ptr<Item>> dropped;  // What they keep is freed without the mutex.
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    dropped.swap(queue_);
    changed_.notify_all();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

OperationQueue::Record& OperationQueue::begin(const Operation& operation, uint64_t number) {
  Record& record = records_[number % records_.size()];
  last_ = &record;
  const uint64_t now = TickClock::ticks();
  record = {.operation = operation, .number = number, .began = now, .ended = now, .failed = false};
  return record;
}

void OperationQueue::run(const Operation& operation, Deadline deadline) {
  MutexLock lock(mutex_);
  if (busy_ || !queue_.empty()) {
    lock.unlock();
    const auto item = submit(operation, deadline);
    wait(*item, Deadline::never());  // its own deadline ends it
    if (item->error) std::rethrow_exception(item->error);
    return;
  }
  const uint64_t number = ++last_number_;
  busy_ = true;
  Record& record = begin(operation, number);
  lock.unlock();
  std::exception_ptr error;
  try {
    execute_(operation, number, deadline);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  busy_ = false;
  record.ended = TickClock::ticks();
  record.failed = error != nullptr;
  if (!queue_.empty()) changed_.notify_all();
  lock.unlock();
  if (error) std::rethrow_exception(error);
}

std::shared_ptr<OperationQueue::Item> OperationQueue::submit(const Operation& operation, Deadline deadline,
                                                             std::shared_ptr<const void> keep) {
  auto item = std::make_shared<Item>();
  item->operation = operation;
  item->deadline = deadline;
  item->keep = std::move(keep);
  item->owns = item->keep != nullptr;
  const MutexLock lock(mutex_);
  item->number = ++last_number_;
  queue_.push_back(item);
  if (!thread_.joinable()) {
    thread_ = start_thread([this] { run_thread(); });
  }
  changed_.notify_all();
  return item;
}

void OperationQueue::execute_front(Deadline limit) {
  auto item = queue_.front();
  queue_.pop_front();
  busy_ = true;
  executing_ = item;
  Record& record = begin(item->operation, item->number);
  mutex_.unlock();
  std::exception_ptr error;
  try {
    const ScopedWorkForOthers work(waits_, main_waits_);
    execute_(item->operation, item->number, item->deadline.earlier(limit));
  } catch (...) {
    error = std::current_exception();
  }
  item->keep.reset();
  mutex_.lock();
  executing_.reset();
  if (error && item.use_count() == 1 && !unseen_error_) unseen_error_ = error;
  item->error = error;
  item->done = true;
  record.ended = TickClock::ticks();
  record.failed = error != nullptr;
  busy_ = false;
  changed_.notify_all();
}

bool OperationQueue::wait(Item& item, Deadline deadline) {
  MutexLock lock(mutex_);
  while (!item.done) {
    if (!busy_ && !queue_.empty()) {
      execute_front(deadline);
      continue;
    }
    if (deadline.expired()) return false;
    wait_for_change(lock, deadline);
  }
  return true;
}

void OperationQueue::wait_for_change(MutexLock& lock, Deadline deadline) {
  const bool is_main = waits_ != nullptr && waits_->is_main();
  if (is_main) main_waits_ = true;
  changed_.wait_until(lock, deadline.time_point());
  if (is_main) main_waits_ = false;
}

bool OperationQueue::all_own() const {
  const auto owns = [](const auto& item) { return item->owns; };
  return (!busy_ || (executing_ && owns(executing_))) && std::ranges::all_of(queue_, owns);
}

void OperationQueue::finish() {
  MutexLock lock(mutex_);
  while ((busy_ || !queue_.empty()) && all_own()) {
    if (busy_) {
      wait_for_change(lock, Deadline::never());
    } else {
      execute_front(Deadline::never());
    }
  }
  if (unseen_error_) std::rethrow_exception(std::exchange(unseen_error_, nullptr));
}

std::string OperationQueue::in_flight() const {
  const MutexLock lock(mutex_);
  std::vector<std::string> texts;
  const auto add = [&](const Operation& operation, uint64_t number) {
    texts.push_back(fmt::format("{} number {}", operation.to_string(), number));
  };
  if (busy_) add(last_->operation, last_->number);
  for (const auto& item : queue_) add(item->operation, item->number);
  return fmt::format("{}", fmt::join(texts, ", "));
}

bool OperationQueue::done(const Item& item) const {
  const MutexLock lock(mutex_);
  return item.done;
}

void OperationQueue::run_thread() {
  MutexLock lock(mutex_);
  for (;;) {
    while (!stopping_ && (busy_ || queue_.empty())) changed_.wait(lock);
    if (stopping_) return;
    execute_front(Deadline::never());
  }
}

Activity OperationQueue::activity() const {
  const MutexLock lock(mutex_);
  if (last_ == nullptr) return {};
  return {.number = last_->number,
          .operation = last_->operation.to_string(),
          .running = busy_,
          .since = clock_.time_of(busy_ ? last_->began : last_->ended)};
}

std::vector<std::string> OperationQueue::history(size_t most) const {
  const MutexLock lock(mutex_);
  std::vector<std::string> lines;
  const auto now = Deadline::Clock::now();
  const uint64_t first = last_number_ >= records_.size() ? last_number_ - records_.size() + 1 : 1;
  for (uint64_t number = first; number <= last_number_; ++number) {
    const Record& record = records_[number % records_.size()];
    if (record.number != number) continue;  // still queued
    const bool running = record.ended == record.began;
    const auto began = clock_.time_of(record.began);
    const auto ended = running ? now : clock_.time_of(record.ended);
    lines.push_back(fmt::format(
        "{} {}: {}, began {} ago, {}", number, record.operation.to_string(),
        record.failed ? "failed"
        : running     ? "running"
                      : "done",
        format_seconds(now - began),
        fmt::format("took {:.0f} us", std::chrono::duration<double, std::micro>(ended - began).count())));
  }
  if (lines.size() > most) lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(most));
  return lines;
}

}  // namespace muster::detail
