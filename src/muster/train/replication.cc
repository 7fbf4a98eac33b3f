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

void BufferBroadcast::run(const std::vector<torch::Tensor>& buffers) {
  size_t bytes = 0;
  for (const auto& buffer : buffers) bytes += buffer.nbytes();
  if (bytes == 0 || communicator_.size() == 1) return;
  if (capacity_ < bytes) {
    memory_ = communicator_.allocate(bytes);
    capacity_ = bytes;
  }
  const torch::NoGradGuard no_grad;
  const auto move = [&](bool in) {
    auto* place = static_cast<std::byte*>(memory_.get());
    for (const auto& buffer : buffers) {
      const auto packed = torch::from_blob(place, buffer.sizes(), buffer.options());
      (in ? packed : buffer).copy_(in ? buffer : packed);
      place += buffer.nbytes();
    }
  };
  if (communicator_.rank() == 0) move(true);
  communicator_.broadcast(memory_.get(), bytes, DType::kInt8, 0);
  if (communicator_.rank() != 0) move(false);
}

}  // namespace muster::detail
