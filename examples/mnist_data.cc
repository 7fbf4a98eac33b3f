#include "examples/mnist_data.h"

#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "muster/error.h"
#include "muster/idx.h"

namespace examples {
namespace {

// Of the 60,000 training images.
constexpr double kMean = 0.1307;
constexpr double kDeviation = 0.3081;

std::filesystem::path find_file(const std::filesystem::path& folder, const std::string& name) {
  for (const char* ending : {"", ".gz"}) {
    auto path = folder / (name + ending);
    if (std::filesystem::exists(path)) return path;
  }
  throw muster::InvalidArgument(fmt::format(
      "{} has no file {} or {}.gz; scripts/fetch-mnist gets the data set", folder.string(), name, name));
}

at::Tensor to_tensor(const muster::IdxArray& array) {
  at::Tensor tensor = at::empty(array.shape, at::kByte);
  std::memcpy(tensor.data_ptr(), array.values.data(), array.values.size());
  return tensor;
}

}  // namespace

Mnist load_mnist(const std::filesystem::path& folder, bool train) {
  const std::string prefix = train ? "train" : "t10k";
  const auto image_file = find_file(folder, prefix + "-images-idx3-ubyte");
  const auto label_file = find_file(folder, prefix + "-labels-idx1-ubyte");
  const muster::IdxArray images = muster::read_idx(image_file);
  const muster::IdxArray labels = muster::read_idx(label_file);
  if (images.shape.size() != 3 || images.shape[1] != 28 || images.shape[2] != 28) {
    throw muster::DataLoss(fmt::format("{} does not hold images of 28 by 28", image_file.string()));
  }
  if (labels.shape.size() != 1)
    throw muster::DataLoss(fmt::format("{} does not hold one label an image", label_file.string()));
  if (labels.shape[0] != images.shape[0]) {
    throw muster::DataLoss(fmt::format("{} has {} images, but {} has {} labels", image_file.string(),
                                       images.shape[0], label_file.string(), labels.shape[0]));
  }
  for (size_t i = 0; i < labels.values.size(); ++i) {
    if (labels.values[i] > 9)
      throw muster::DataLoss(
          fmt::format("{}: label {} is {}, not a digit", label_file.string(), i, labels.values[i]));
  }
  return {.images = to_tensor(images).unsqueeze(1).to(at::kFloat).div_(255).sub_(kMean).div_(kDeviation),
          .labels = to_tensor(labels).to(at::kLong)};
}

std::optional<std::filesystem::path> fetched_mnist() {
  std::filesystem::path base;
  if (const char* data = std::getenv("XDG_DATA_HOME")) {
    base = data;
  } else if (const char* home = std::getenv("HOME")) {
    base = std::filesystem::path(home) / ".local" / "share";
  } else {
    return std::nullopt;
  }
  const auto folder = base / "muster" / "mnist";
  if (!std::filesystem::exists(folder / "train-images-idx3-ubyte")) return std::nullopt;
  return folder;
}

}  // namespace examples
