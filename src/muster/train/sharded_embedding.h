#pragma once

// An embedding table whose rows are on the parameter servers: a worker holds only those of its batch. In
// place of torch::nn::Embedding:
//
//   muster::ShardedEmbedding items(job.tables(), {.name = "items", .width = 32});
//   torch::Tensor rows = items(ids);              // [batch] -> [batch, 32]
//
// The forward pass pulls the rows. When the backward pass reaches them, their gradients are pushed, and the
// servers update the rows by the table's own rule at once: the rows are no parameters of the module, and no
// optimizer or Trainer sees them. So a worker's gradients are not averaged with the others', but applied one
// after the other. Without gradients (torch::NoGradGuard, Trainer::evaluate) rows are pulled only.
//
// Every worker makes the table, with the same options. Like other modules it is used by one thread at a time.

#include <cstdint>
#include <string>

#include <torch/torch.h>

#include "muster/ps/table_client.h"

namespace muster {

class ShardedEmbedding {
 public:
  /// Creates the table on all servers, or checks that it is the same. The client outlives this, and every
  /// backward pass.
  ShardedEmbedding(TableClient& client, TableOptions options);

  /// The rows of `ids`, int64 of any shape: float32 of that shape and `width`. Throws InvalidArgument for
  /// other ids, and what TableClient throws. A second backward pass through what it gave (retain_graph)
  /// throws, too: the servers have had the gradients; add the losses up first.
  torch::Tensor operator()(const torch::Tensor& ids);

  /// How much of it there is, on all servers together.
  TableSize size() { return client_.size(options_.name); }

  const TableOptions& options() const { return options_; }

 private:
  TableClient& client_;
  const TableOptions options_;
  const torch::Tensor anchor_;  // requires a gradient, so that autograd comes by; never has one
};

}  // namespace muster
