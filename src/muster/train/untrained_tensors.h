#pragma once

// The tensors of a model that are not trained, as frozen parameters and BatchNorm's buffers, on the parameter
// servers: the chief stores them there, and the other workers load them, those that come later too.
//
//   UntrainedTensors untrained(tables, /*model=*/1);
//   if (chief) untrained.store(0, tensors);
//   ... the others learn that they are there ...
//   untrained.load(0, tensors);
//
// They lie, bit by bit, in an embedding table whose rows become what is pushed: so they are spread over all
// servers, and travel as its rows do.
//
// One thread uses it, and the table client outlives it. store() and load() block until the servers have
// answered, and throw what a TableClient throws.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

#include "muster/ps/table/table_client.h"

namespace muster::detail {

class UntrainedTensors {
 public:
  UntrainedTensors(TableClient& tables, int model);

  /// Sets, from 0, are apart from each other. Storing one again replaces it: nobody may be loading it.
  void store(int set, const std::vector<torch::Tensor>& tensors);

  /// Throws InvalidArgument where the tensors have other types or sizes than those that were stored.
  void load(int set, const std::vector<torch::Tensor>& tensors);

 private:
  using Rows = std::function<void(std::span<const int64_t> ids, std::span<std::byte> bytes)>;
  void for_rows(int set, size_t bytes, const Rows& body);

  TableClient& tables_;
  const std::string name_;
  bool created_ = false;
};

}  // namespace muster::detail
