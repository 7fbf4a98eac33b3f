#include "muster/train/replication.h"

#include <optional>
#include <sstream>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/text.h"
#include "muster/collective/gather_texts.h"

namespace muster::detail {

namespace {

// The first option=value of two lines that has another value, where the options are the same.
std::optional<std::pair<std::string, std::string>> other_value(const std::string& left,
                                                               const std::string& right) {
  const auto words = split(left, ' ');
  const auto others = split(right, ' ');
  if (words.size() != others.size()) return std::nullopt;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == others[i]) continue;
    const size_t equals = words[i].find('=');
    if (equals == std::string::npos || others[i].find('=') != equals ||
        words[i].compare(0, equals, others[i], 0, equals) != 0)
      return std::nullopt;
    return std::pair(words[i], others[i]);
  }
  return std::nullopt;
}

}  // namespace

std::string first_difference(const std::string& chiefs, const std::string& mine) {
  std::istringstream left(chiefs);
  std::istringstream right(mine);
  std::string x;
  std::string y;
  for (;;) {
    const bool has_x = static_cast<bool>(std::getline(left, x));
    const bool has_y = static_cast<bool>(std::getline(right, y));
    if (!has_x && !has_y) return "";
    if (has_x == has_y && x == y) continue;
    if (const auto values = other_value(x, y); has_x && has_y && values) std::tie(x, y) = *values;
    return fmt::format("the chief has {}, it has {}", has_x ? x : "no more", has_y ? y : "no more");
  }
}

void check_same(Communicator& communicator, const std::string& description,
                const std::function<std::string(int rank)>& name_of) {
  const auto descriptions = gather_texts(communicator, "a Trainer's constructor", description);
  for (size_t rank = 1; rank < descriptions.size(); ++rank) {
    const std::string difference = first_difference(descriptions[0], descriptions[rank]);
    if (!difference.empty())
      raise<InvalidArgument>("the workers do not train the same: {}: {}", name_of(static_cast<int>(rank)),
                             difference);
  }
}

void broadcast_tensors(Communicator& communicator, std::vector<torch::Tensor> tensors) {
  if (communicator.size() == 1) return;
  const torch::NoGradGuard no_grad;
  for (auto& tensor : tensors) {
    if (!tensor.defined() || tensor.numel() == 0) continue;
    const auto dense = tensor.contiguous();
    communicator.broadcast(dense.data_ptr(), dense.nbytes(), DType::kInt8, 0);
    if (!dense.is_same(tensor)) tensor.copy_(dense);
  }
}

// By the sums of their values: hosts with other processors may differ in the last bits.
std::vector<double> sums_of_values(const std::vector<torch::Tensor>& tensors) {
  const torch::NoGradGuard no_grad;
  std::vector<double> sums;
  for (const auto& tensor : tensors) {
    // What is not finite must be in the same places, too: it counts as more than anything else there is.
    const auto values = tensor.detach().to(torch::kFloat64).nan_to_num(1e30, 2e30, -3e30);
    const auto sum = values.sum().item<double>();
    sums.insert(sums.end(), {sum, -sum, values.abs().sum().item<double>()});
  }
  return sums;
}

std::optional<size_t> first_that_differs(const std::vector<double>& most) {
  constexpr double kSame = 1e-4;  // of the sum of the absolute values
  for (size_t i = 0; i < most.size() / 3; ++i) {
    if (most[3 * i] + most[3 * i + 1] > kSame * most[3 * i + 2]) return i;
  }
  return std::nullopt;
}

int64_t fingerprint_of_sizes(const std::vector<torch::Tensor>& tensors) {
  uint64_t hash = 14695981039346656037U;  // FNV-1a
  const auto add = [&](int64_t value) { hash = (hash ^ static_cast<uint64_t>(value)) * 1099511628211U; };
  for (const auto& tensor : tensors) {
    add(static_cast<int64_t>(tensor.scalar_type()));
    add(tensor.dim());
    for (const int64_t size : tensor.sizes()) add(size);
  }
  return static_cast<int64_t>(hash);
}

void check_sizes(int64_t chiefs, const std::vector<torch::Tensor>& mine) {
  if (chiefs != fingerprint_of_sizes(mine))
    throw InvalidArgument(
        "the chief's buffers have other sizes than those of this worker: all workers need the same, or "
        "TrainerOptions::broadcast_buffers = false, which leaves each its own");
}

void BufferBroadcast::run(const std::vector<torch::Tensor>& buffers) {
  constexpr size_t kHead = 64;  // for the sizes, so that what follows is aligned
  if (buffers.empty() || communicator_.size() == 1) return;
  size_t bytes = kHead;
  for (const auto& buffer : buffers) bytes += buffer.nbytes();
  if (capacity_ < bytes) {
    memory_ = communicator_.allocate(bytes);
    capacity_ = bytes;
  }
  const torch::NoGradGuard no_grad;
  const auto move = [&](bool in) {
    auto* place = static_cast<std::byte*>(memory_.get()) + kHead;
    for (const auto& buffer : buffers) {
      const auto packed = torch::from_blob(place, buffer.sizes(), buffer.options());
      (in ? packed : buffer).copy_(in ? buffer : packed);
      place += buffer.nbytes();
    }
  };
  auto& sizes = *static_cast<int64_t*>(memory_.get());
  if (communicator_.rank() == 0) {
    sizes = fingerprint_of_sizes(buffers);
    move(true);
  }
  communicator_.broadcast(memory_.get(), bytes, DType::kInt8, 0);
  if (communicator_.rank() == 0) return;
  check_sizes(sizes, buffers);
  move(false);
}

}  // namespace muster::detail
