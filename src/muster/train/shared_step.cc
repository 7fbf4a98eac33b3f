#include "muster/train/shared_step.h"

#include <algorithm>
#include <new>

namespace muster::detail {
namespace {

constexpr size_t kAlignment = 128;

// Takes arrays out of a block, one after the other; without a block, only measures.
class Carver {
 public:
  explicit Carver(std::byte* block) : block_(block) {}

  template <typename T>
  T* take(size_t count) {
    at_ = (at_ + kAlignment - 1) / kAlignment * kAlignment;
    T* first = block_ == nullptr ? nullptr : reinterpret_cast<T*>(block_ + at_);
    at_ += count * sizeof(T);
    return first;
  }
  size_t bytes() const { return at_; }

 private:
  std::byte* block_;
  size_t at_ = 0;
};

}  // namespace

SharedStep::SharedStep(SharedHost& host, Shape shape) : host_(host), shape_(shape) {
  const auto workers = static_cast<size_t>(host.size());
  // Zeroed memory is what all of these are at first.
  const auto carve = [&](std::byte* block) {
    Carver carver(block);
    carver.take<Head>(1);
    workers_ = carver.take<WorkerSlot>(workers);
    gradients_ = carver.take<GradientSlot>(2 * workers * shape.parameters);
    buckets_ = carver.take<std::atomic<uint64_t>>(shape.buckets);
    norms_ = carver.take<RangeNorms>(shape.ranges);
    control_ = carver.take<double>(control_count());
    return carver.bytes();
  };
  memory_ = host.share(carve(nullptr));
  carve(static_cast<std::byte*>(memory_.get()));
}

SharedStep::GradientSlot& SharedStep::gradient(int index, uint64_t round, size_t parameter) const {
  return gradients_[(2 * static_cast<size_t>(index) + round % 2) * shape_.parameters + parameter];
}

void SharedStep::wake_all() {
  for (int i = 0; i < host_.size(); ++i) {
    if (i != host_.index()) wake(worker(i).doorbell);
  }
}

void SharedStep::begin(uint64_t round, const Contribution& contribution) {
  WorkerSlot& mine = worker(host_.index());
  mine.contributions[round % 2] = contribution;
  mine.begun.exchange(round);
  wake_all();
}

void SharedStep::deliver(uint64_t round, size_t parameter, uint64_t offset, bool held) {
  GradientSlot& mine = gradient(host_.index(), round, parameter);
  mine.offset = offset * 2 + (held ? 1 : 0);
  mine.round.exchange(round);
  wake_all();
}

void SharedStep::complete(uint64_t round, double loss) {
  WorkerSlot& mine = worker(host_.index());
  mine.losses[round % 2] = loss;
  mine.completed.exchange(round);
  wake_all();
  wake(reducer_doorbell());
}

namespace {

constexpr int kRankBits = 12;
constexpr int kParameterBits = 20;
constexpr uint64_t kRoundMask = (uint64_t{1} << 32) - 1;

uint64_t round_in(uint64_t packed) {
  return packed >> (kRankBits + kParameterBits);
}

}  // namespace

void SharedStep::note_not_finite(uint64_t round, const NotFinite& found) {
  const uint64_t packed = (round & kRoundMask) << (kRankBits + kParameterBits) |
                          std::min<uint64_t>(found.parameter, (1U << kParameterBits) - 1) << kRankBits |
                          std::min<uint64_t>(static_cast<uint64_t>(found.rank + 1), (1U << kRankBits) - 1);
  uint64_t before = head().not_finite.load();
  while (round_in(before) != round_in(packed) && !head().not_finite.compare_exchange_weak(before, packed)) {
  }
}

std::optional<SharedStep::NotFinite> SharedStep::not_finite(uint64_t round) const {
  const uint64_t packed = head().not_finite.load();
  if (packed == 0 || round_in(packed) != (round & kRoundMask)) return std::nullopt;
  return NotFinite{.parameter = (packed >> kRankBits) & ((uint64_t{1} << kParameterBits) - 1),
                   .rank = static_cast<int>(packed & ((uint64_t{1} << kRankBits) - 1)) - 1};
}

bool SharedStep::has_begun(int index, uint64_t round) const {
  return worker(index).begun.load(std::memory_order_acquire) >= round;
}

bool SharedStep::completed(int index, uint64_t round) const {
  return worker(index).completed.load(std::memory_order_acquire) >= round;
}

bool SharedStep::settled(int index, uint64_t round, size_t parameter) const {
  return gradient(index, round, parameter).round.load(std::memory_order_acquire) == round ||
         completed(index, round);
}

const SharedStep::Contribution& SharedStep::contribution(int index, uint64_t round) const {
  return worker(index).contributions[round % 2];
}

double SharedStep::loss(int index, uint64_t round) const {
  return worker(index).losses[round % 2];
}

SharedStep::Delivery SharedStep::delivery(int index, uint64_t round, size_t parameter) const {
  const GradientSlot& theirs = gradient(index, round, parameter);
  if (theirs.round.load(std::memory_order_acquire) != round) return {};
  return {.exists = true, .data = host_.at(index, theirs.offset / 2), .held = theirs.offset % 2 == 1};
}

}  // namespace muster::detail
