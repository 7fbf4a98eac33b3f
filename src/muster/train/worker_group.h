#pragma once

// How the workers of a job act together for a Trainer: how they come to the same model, and by which strategy
// they train it. One kind is over the communicator of all workers, the other over parameter servers, where
// workers may come and go.
//
// It belongs to the Trainer's thread. All workers call the same, which waits for them as a collective does,
// or through the coordinator; it throws PeerLost, DeadlineExceeded, Aborted, and InvalidArgument where the
// workers differ.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <torch/types.h>

#include "muster/job/job_context.h"
#include "muster/optim/update_rule.h"
#include "muster/train/flat_model.h"
#include "muster/train/strategy.h"

namespace muster::detail {

struct StrategyOptions {
  UpdateRulePtr rule;
  bool check_finite = false;  ///< gradients may be infinite, as with loss scales
  double clip_norm = 0;
  int64_t max_steps = 0;
};

class WorkerGroup {
 public:
  virtual ~WorkerGroup() = default;

  /// Memory for tensors, which those who need gradients can reach.
  virtual std::shared_ptr<void> allocate(size_t bytes) = 0;

  /// Makes the model the chief's. `description`: the same on all workers, else InvalidArgument on all.
  virtual void take_model(FlatModel& model, const std::string& description) = 0;

  /// Whether the strategy can be made before the first backward pass, and must be.
  virtual bool starts_with_strategy() const = 0;

  /// Whether any worker says `mine`, which all call; with parameter servers, what this one says.
  virtual bool any(bool mine) = 0;

  /// The number that batches are counted in, such that it divides all of them where they are the same; 0:
  /// nobody has any. Called before make_strategy() by all workers, with what they have.
  virtual int64_t agree_on_unit(int64_t batches, int64_t samples) = 0;

  virtual std::unique_ptr<Strategy> make_strategy(FlatModel& model, const StrategyOptions& options) = 0;

  /// Make the buffers the chief's, after a step and during an evaluation.
  virtual void share_buffers(const std::vector<torch::Tensor>& buffers) = 0;
  virtual void share_buffers_for_evaluation(const std::vector<torch::Tensor>& buffers) = 0;

  /// The first of the tensors that is not nearly the same on all workers, of which each has a copy.
  virtual std::optional<size_t> differs(const std::vector<torch::Tensor>& copies) = 0;

  virtual std::map<std::string, double> add_up(const std::map<std::string, double>& mine) = 0;
  virtual void barrier() = 0;
};

/// By the job's --strategy.
std::unique_ptr<WorkerGroup> make_worker_group(JobContext& job);

std::unique_ptr<WorkerGroup> make_communicator_group(JobContext& job);
std::unique_ptr<WorkerGroup> make_server_group(JobContext& job);

}  // namespace muster::detail
