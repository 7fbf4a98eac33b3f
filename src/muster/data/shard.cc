#include "muster/shard.h"

#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>

#include "muster/base/error.h"

namespace muster {

using namespace detail;

namespace {

void check_batch(int64_t batch) {
  if (batch < 1) raise<InvalidArgument>("a batch of {} samples can't be made", batch);
}

}  // namespace

Shard::Shard(int64_t size, Options options) : size_(size), options_(options) {
  if (options_.size < 1 || options_.rank < 0 || options_.rank >= options_.size)
    raise<InvalidArgument>("there is no worker {} of {}", options_.rank, options_.size);
  if (size < 0) raise<InvalidArgument>("a data set of {} samples can't be shared", size);
}

int64_t Shard::size() const {
  return (size_ - options_.rank + options_.size - 1) / options_.size;
}

int64_t Shard::batches(int64_t batch) const {
  check_batch(batch);
  return (size() + batch - 1) / batch;
}

std::vector<at::Tensor> Shard::epoch(int64_t epoch, int64_t batch) const {
  auto generator = at::detail::createCPUGenerator(options_.seed * 1'000'003 + static_cast<uint64_t>(epoch));
  return deal(at::randperm(size_, generator, at::kLong), batch);
}

std::vector<at::Tensor> Shard::in_order(int64_t batch) const {
  return deal(at::arange(size_, at::kLong), batch);
}

std::vector<at::Tensor> Shard::deal(const at::Tensor& order, int64_t batch) const {
  check_batch(batch);
  const at::Tensor mine = order.slice(0, options_.rank, size_, options_.size).contiguous();
  std::vector<at::Tensor> batches;
  for (int64_t begin = 0; begin < size(); begin += batch)
    batches.push_back(mine.slice(0, begin, std::min(begin + batch, size())));
  return batches;
}

}  // namespace muster
