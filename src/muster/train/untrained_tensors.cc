#include "muster/train/untrained_tensors.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "muster/base/copy.h"
#include "muster/optim/row_rules.h"
#include "muster/train/replication.h"

namespace muster::detail {
namespace {

using torch::Tensor;

constexpr size_t kWidth = 4096;  // floats of a row: a model with few buffers needs one
constexpr size_t kRowBytes = kWidth * sizeof(float);
constexpr size_t kRowsAtOnce = 256;  // 4 MiB
constexpr int kBitsOfRow = 40;       // of an id; the set stands above them

size_t bytes_of(const std::vector<Tensor>& tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), size_t{0},
                         [](size_t sum, const Tensor& tensor) { return sum + tensor.nbytes(); });
}

// Goes over the bytes of dense tensors, which follow each other.
class Cursor {
 public:
  explicit Cursor(const std::vector<Tensor>& tensors) : tensors_(tensors) {}

  // Calls copy(memory of a tensor, memory of `other`, bytes) until one of them is at its end.
  template <typename Copy>
  void advance(std::span<std::byte> other, const Copy& copy) {
    while (!other.empty() && at_ < tensors_.size()) {
      const size_t bytes = std::min(tensors_[at_].nbytes() - offset_, other.size());
      if (bytes > 0) copy(static_cast<std::byte*>(tensors_[at_].data_ptr()) + offset_, other.data(), bytes);
      other = other.subspan(bytes);
      offset_ += bytes;
      if (offset_ < tensors_[at_].nbytes()) continue;
      ++at_;
      offset_ = 0;
    }
  }

 private:
  const std::vector<Tensor>& tensors_;
  size_t at_ = 0;
  size_t offset_ = 0;
};

}  // namespace

UntrainedTensors::UntrainedTensors(TableClient& tables, int model)
    : tables_(tables), name_(fmt::format("muster/untrained/{}", model)) {}

// For the rows of so many bytes, some at a time.
void UntrainedTensors::for_rows(int set, size_t bytes, const Rows& body) {
  if (bytes == 0) return;
  if (!created_) tables_.create({.name = name_, .width = kWidth, .rule = assign(), .scale = 0});
  created_ = true;
  const size_t rows = (bytes + kRowBytes - 1) / kRowBytes;
  std::vector<int64_t> ids(std::min(rows, kRowsAtOnce));
  std::vector<std::byte> memory(ids.size() * kRowBytes);
  for (size_t row = 0; row < rows; row += ids.size()) {
    const size_t count = std::min(ids.size(), rows - row);
    std::iota(ids.begin(), ids.end(), (int64_t{set} << kBitsOfRow) + static_cast<int64_t>(row));
    body({ids.data(), count}, {memory.data(), count * kRowBytes});
  }
}

void UntrainedTensors::store(int set, const std::vector<Tensor>& tensors) {
  if (tensors.empty()) return;
  std::vector<Tensor> dense = {torch::tensor({fingerprint_of_sizes(tensors)})};
  for (const auto& tensor : tensors) dense.push_back(tensor.detach().contiguous());
  Cursor cursor(dense);
  for_rows(set, bytes_of(dense), [&](std::span<const int64_t> ids, std::span<std::byte> bytes) {
    cursor.advance(
        bytes, [](const std::byte* tensor, std::byte* row, size_t size) { copy_bytes(row, tensor, size); });
    tables_.push(name_, ids, reinterpret_cast<const float*>(bytes.data()));
  });
}

void UntrainedTensors::load(int set, const std::vector<Tensor>& tensors) {
  const torch::NoGradGuard no_grad;
  if (tensors.empty()) return;
  std::vector<Tensor> dense = {torch::zeros({1}, torch::kInt64)};
  for (const auto& tensor : tensors)
    dense.push_back(torch::empty_like(tensor, torch::MemoryFormat::Contiguous));
  Cursor cursor(dense);
  for_rows(set, bytes_of(dense), [&](std::span<const int64_t> ids, std::span<std::byte> bytes) {
    tables_.pull(name_, ids, reinterpret_cast<float*>(bytes.data()));
    cursor.advance(
        bytes, [](std::byte* tensor, const std::byte* row, size_t size) { copy_bytes(tensor, row, size); });
  });
  check_sizes(dense.front().item<int64_t>(), tensors);
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].detach().copy_(dense[i + 1]);
}

}  // namespace muster::detail
