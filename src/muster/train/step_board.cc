#include "muster/train/step_board.h"

#include <new>

namespace muster {
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

StepBoard::StepBoard(SharedHost& host, Shape shape) : host_(host), shape_(shape) {
  const auto workers = static_cast<size_t>(host.size());
  // Zeroed memory is what all of these are at first.
  const auto carve = [&](std::byte* block) {
    Carver carver(block);
    carver.take<Head>(1);
    speakers_ = carver.take<Speaker>(workers);
    posts_ = carver.take<Post>(2 * workers * shape.parameters);
    buckets_ = carver.take<std::atomic<uint64_t>>(shape.buckets);
    norms_ = carver.take<ChunkNorms>(shape.chunks);
    control_ = carver.take<double>(control_count());
    return carver.bytes();
  };
  memory_ = host.share(carve(nullptr));
  carve(static_cast<std::byte*>(memory_.get()));
}

StepBoard::Post& StepBoard::post(int index, uint64_t round, size_t parameter) const {
  return posts_[(2 * static_cast<size_t>(index) + round % 2) * shape_.parameters + parameter];
}

void StepBoard::wake_all() {
  for (int i = 0; i < host_.size(); ++i) {
    if (i != host_.index()) wake(speaker(i).bell);
  }
}

void StepBoard::announce(uint64_t round, const Announcement& announcement) {
  Speaker& mine = speaker(host_.index());
  mine.announcements[round % 2] = announcement;
  mine.announced.exchange(round);
  wake_all();
}

void StepBoard::deliver(uint64_t round, size_t parameter, uint64_t place, bool held) {
  Post& mine = post(host_.index(), round, parameter);
  mine.place = place * 2 + (held ? 1 : 0);
  mine.round.exchange(round);
  wake_all();
}

void StepBoard::complete(uint64_t round, double loss) {
  Speaker& mine = speaker(host_.index());
  mine.losses[round % 2] = loss;
  mine.completed.exchange(round);
  wake_all();
  wake(courier_bell());
}

bool StepBoard::announced(int index, uint64_t round) const {
  return speaker(index).announced.load(std::memory_order_acquire) >= round;
}

bool StepBoard::completed(int index, uint64_t round) const {
  return speaker(index).completed.load(std::memory_order_acquire) >= round;
}

bool StepBoard::settled(int index, uint64_t round, size_t parameter) const {
  return post(index, round, parameter).round.load(std::memory_order_acquire) == round ||
         completed(index, round);
}

const StepBoard::Announcement& StepBoard::announcement(int index, uint64_t round) const {
  return speaker(index).announcements[round % 2];
}

double StepBoard::loss(int index, uint64_t round) const {
  return speaker(index).losses[round % 2];
}

StepBoard::Delivery StepBoard::delivery(int index, uint64_t round, size_t parameter) const {
  const Post& theirs = post(index, round, parameter);
  if (theirs.round.load(std::memory_order_acquire) != round) return {};
  return {.exists = true, .data = host_.at(index, theirs.place / 2), .held = theirs.place % 2 == 1};
}

}  // namespace muster
