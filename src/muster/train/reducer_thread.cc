#include "muster/train/reducer_thread.h"

#include <algorithm>
#include <limits>

#include "muster/base/log.h"
#include "muster/base/text.h"

namespace muster::detail {

ReducerThread::ReducerThread(Options options)
    : options_(std::move(options)), host_(options_.workers.host()), thread_([this] { run(); }) {}

ReducerThread::~ReducerThread() {
  bool busy = false;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    busy = begun_ > finished_;
    changed_.notify_all();
  }
  wake(options_.shared.reducer_doorbell());
  if (busy) options_.between->abort("a worker has left in the middle of a step");
  thread_.join();
}

void ReducerThread::begin(uint64_t round) {
  const MutexLock lock(mutex_);
  begun_ = round;
  changed_.notify_all();
}

void ReducerThread::check() {
  const MutexLock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

template <typename Ready>
void ReducerThread::wait(const Ready& ready) {
  wait_until(options_.shared.reducer_doorbell(), {}, ready, [this] {
    if (stopping_) throw Stopped();
    options_.workers.check("adding up the gradients of all workers");
  });
}

void ReducerThread::run() {
  try {
    for (uint64_t round = 1;; ++round) {
      {
        MutexLock lock(mutex_);
        while (!stopping_ && begun_ < round) changed_.wait(lock);
        if (stopping_) return;
      }
      reduce(round);
      const MutexLock lock(mutex_);
      finished_ = round;
    }
  } catch (const Stopped&) {
  } catch (const std::exception& error) {
    if (stopping_) return;
    const MutexLock lock(mutex_);
    error_ = std::current_exception();
    options_.workers.abort(error.what());
  }
}

void ReducerThread::reduce(uint64_t round) {
  const Buckets& buckets = options_.buckets;
  ++reduced_;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const auto& bucket = buckets[i];
    wait([&] { return options_.shared.bucket_done(i).load() >= reduced_ * bucket.chunks; });
    options_.between->all_reduce(options_.sums + bucket.offset, bucket.count, bucket.dtype, ReduceOp::kSum,
                                 Deadline::after(options_.timeout));
  }
  wait([&] {
    for (int i = 0; i < host_.size(); ++i) {
      if (!options_.shared.completed(i, round)) return false;
    }
    return true;
  });
  gather_control(round);
  options_.shared.round_reduced().exchange(round);
  options_.shared.wake_all();
  wake(options_.shared.doorbell());
}

void ReducerThread::gather_control(uint64_t round) {
  SharedStep& shared = options_.shared;
  SharedStep::Control control;
  for (int i = 0; i < host_.size(); ++i) {
    const auto& said = shared.contribution(i, round);
    control.total += said.total;
    if (host_.ranks()[static_cast<size_t>(i)] == 0) control.lr = said.lr;
    if (said.total > 0) control.loss += said.total * shared.loss(i, round);
    control.changed += said.changed ? 1 : 0;
  }
  for (size_t p = 0; p < options_.layout.size(); ++p) {
    shared.touched(p) = 0;
    for (int i = 0; i < host_.size(); ++i) shared.touched(p) += shared.delivery(i, round, p).exists ? 1 : 0;
  }
  if (const auto found = shared.not_finite(round)) {
    control.not_finite = 1;
    control.parameter = static_cast<double>(found->parameter);
    control.rank = found->rank;
  }
  shared.control() = control;
  options_.between->all_reduce(shared.control_values(), shared.control_count(), DType::kFloat64,
                               ReduceOp::kSum, Deadline::after(options_.timeout));
}

size_t measure_bucket(Communicator& between, size_t most) {
  constexpr size_t kSmallest = size_t{64} * 1024;
  constexpr size_t kLargest = size_t{16} * 1024 * 1024;
  constexpr int kTimes = 3;
  constexpr double kEnough = 0.9;  // of the best rate: smaller buckets start earlier
  const auto memory = between.allocate(kLargest);
  std::vector<std::pair<size_t, double>> rates;  // bytes a second
  for (size_t bytes = kSmallest; bytes <= std::clamp(most, kSmallest, kLargest); bytes *= 4) {
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kTimes; ++i) {
      between.barrier();
      const auto start = Deadline::Clock::now();
      between.all_reduce(memory.get(), bytes / sizeof(float), DType::kFloat32);
      best = std::min(best, std::chrono::duration<double>(Deadline::Clock::now() - start).count());
    }
    rates.emplace_back(bytes, static_cast<double>(bytes) / best);
  }
  const double top = std::max_element(rates.begin(), rates.end(), [](const auto& a, const auto& b) {
                       return a.second < b.second;
                     })->second;
  auto chosen = static_cast<int64_t>(std::find_if(rates.begin(), rates.end(), [&](const auto& r) {
                                       return r.second >= kEnough * top;
                                     })->first);
  between.broadcast(&chosen, 1, DType::kInt64, 0);
  return static_cast<size_t>(chosen);
}

}  // namespace muster::detail
