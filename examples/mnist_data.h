#pragma once

// MNIST as tensors: 28 by 28 grey digits with their labels. Functions that return values: any thread may call
// them.

#include <filesystem>
#include <optional>

#include <ATen/ATen.h>

namespace examples {

struct Mnist {
  at::Tensor images;  ///< float32 (n, 1, 28, 28), normalised by the training set's mean and deviation
  at::Tensor labels;  ///< int64 (n)

  int64_t size() const { return images.size(0); }
};

/// Reads {train,t10k}-{images-idx3,labels-idx1}-ubyte, plain or .gz, from `folder`. Throws
/// muster::InvalidArgument when the files are not there, muster::DataLoss when they are damaged or do not
/// belong together.
Mnist load_mnist(const std::filesystem::path& folder, bool train);

/// The folder where scripts/fetch-mnist puts the whole set, when it is there.
std::optional<std::filesystem::path> fetched_mnist();

}  // namespace examples
