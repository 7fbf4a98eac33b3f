#pragma once

// An embedding table whose rows are on the parameter servers: a worker holds only those of its batch. In
// place of torch::nn::Embedding:
//
//   muster::ShardedEmbedding items(job, {.name = "items", .width = 32});
//   torch::Tensor rows = items(ids);              // [batch] -> [batch, 32]
//
// The forward pass pulls the rows. When a backward pass ends, their gradients are pushed, and the servers
// update the rows by the table's own optimizer at once, each row once by the sum of its gradients, however
// many lookups it was in: the rows are no parameters of the module, and no other optimizer or Trainer sees
// them. So a worker's gradients are not averaged with the others', but applied one after the other. Without
// gradients (torch::NoGradGuard, Trainer::evaluate) rows are pulled only.
//
// Within Trainer::step() they are pushed when the step's gradient has been used: with `accumulate` the mean
// of its batches, and nothing of a step that is dropped (too stale, or too late) or skipped (--on-nan). With
// ps-local that is after each step of the worker's own. Another worker may see them one step later.
//
// Every worker makes the table, with the same options. Like other modules it is used by one thread at a time.

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "muster/job.h"
#include "muster/optim.h"

namespace muster {

namespace detail {
class TableClient;
}

struct EmbeddingOptions {
  std::string name;                                  ///< The table's name, in all messages.
  int64_t width = 0;                                 ///< A row has so many floats.
  optim::RowOptimizer optimizer = optim::Adagrad();  ///< How the rows change.
  double scale = 0.05;                               ///< Initial values are uniform in [-scale, scale).
  uint64_t seed = 0;                                 ///< Initial values depend on this and the row's id.
};

/// How much of a table there is, on all servers together.
struct EmbeddingSize {
  uint64_t rows = 0;   ///< The rows that have been trained.
  uint64_t bytes = 0;  ///< The memory that they take, with the optimizer's states and the index.
};

class ShardedEmbeddingImpl : public torch::nn::Module {
 public:
  /// Creates the table on all servers, or checks that it is the same. The job outlives this, and every
  /// backward pass. Throws InvalidArgument in a job without parameter servers and for options that make no
  /// sense, Refused where the servers have another table of this name.
  ShardedEmbeddingImpl(Job& job, EmbeddingOptions options);

  /// For Muster's own rooms and tests. The client outlives this, and every backward pass.
  ShardedEmbeddingImpl(detail::TableClient& client, EmbeddingOptions options);

  /// The rows of `ids`, int64 of any shape: float32 of that shape and `width`. Throws InvalidArgument for
  /// other ids, PeerLost for a server that is gone, DeadlineExceeded for one that does not answer. A second
  /// backward pass through what it gave (retain_graph) throws, too: the servers have had the gradients; add
  /// the losses up first. One that brings a gradient that is infinite or not a number throws DataLoss, or with
  /// --on-nan skip leaves the rows as they are.
  torch::Tensor forward(const torch::Tensor& ids);

  EmbeddingSize size();
  const EmbeddingOptions& options() const { return options_; }

  void pretty_print(std::ostream& stream) const override;

 private:
  detail::TableClient& client_;
  const EmbeddingOptions options_;
  const torch::Tensor anchor_;         // Requires a gradient, so that autograd calls our backward function.
  detail::JobContext* job_ = nullptr;  // Null where there is only a client.
};

/// The module holder, as torch's modules have one: copies stand for the same table.
class ShardedEmbedding : public torch::nn::ModuleHolder<ShardedEmbeddingImpl> {
 public:
  using ModuleHolder::ModuleHolder;
  ShardedEmbedding(Job& job, EmbeddingOptions options)
      : ModuleHolder(std::make_shared<ShardedEmbeddingImpl>(job, std::move(options))) {}
};

}  // namespace muster
