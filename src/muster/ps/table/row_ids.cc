#include "muster/ps/table/row_ids.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "muster/base/copy.h"
#include "muster/base/error.h"

namespace muster::detail {

UniqueIds::UniqueIds(std::span<const int64_t> batch) : position(batch.size()) {
  if (batch.size() > std::numeric_limits<uint32_t>::max())
    raise<InvalidArgument>("a batch of {} ids; expected at most 2^32", batch.size());
  std::vector<uint32_t> order(batch.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return batch[a] < batch[b]; });
  for (const uint32_t at : order) {
    if (ids.empty() || ids.back() != batch[at]) ids.push_back(batch[at]);
    position[at] = static_cast<uint32_t>(ids.size() - 1);
  }
}

std::vector<float> UniqueIds::add_up(const float* rows, size_t width) const {
  std::vector<float> sums(ids.size() * width);
  std::vector<bool> begun(ids.size());
  for (size_t i = 0; i < position.size(); ++i) {
    const float* row = rows + i * width;
    float* sum = sums.data() + position[i] * width;
    if (begun[position[i]]) {
      for (size_t j = 0; j < width; ++j) sum[j] += row[j];
    } else {
      copy_bytes(sum, row, width * sizeof(float));
      begun[position[i]] = true;
    }
  }
  return sums;
}

}  // namespace muster::detail
