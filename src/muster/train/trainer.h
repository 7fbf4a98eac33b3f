#pragma once

// Trains a torch module on all workers of a job. The program keeps its loop; one call is one step:
//
//   muster::Trainer trainer(job, net, muster::sgd({.lr = 0.05, .momentum = 0.9}));
//   for (auto& batch : shard_of_this_worker)
//     trainer.step([&] { return loss(net->forward(batch.data), batch.target); }, batch.size());
//   trainer.join();                      // out of data; the others may have more
//
// All workers make their Trainer with the same model, and start from the chief's parameters and buffers. Each
// step averages the gradients of all workers and updates the parameters, equally on all: N workers with
// batches of B samples do what one would do with N·B. How is chosen by --strategy.
//
// While a Trainer lives, the parameters of the module are views of memory that the workers of a host share:
// read them as you like, but change them through change_parameters(). Afterwards they are the module's own
// again. Gradients are this worker's own during a step, and gone after it.
//
// A program may have several Trainers at a time, of models that share no trained parameter. A model's
// parameters change in its own Trainer's steps only, and only what those compute counts: gradients that another
// model's backward pass leaves on them are dropped. All workers make their Trainers in the same order, and take
// their steps in the same order.
//
// Not thread-safe: one thread trains. What fails on one worker ends the job on all: an exception from a step
// is final, and what muster::run makes of it reaches the others as the reason.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "muster/optim/rules.h"
#include "muster/optim/schedule.h"
#include "muster/train/job.h"
#include "muster/train/metrics.h"

namespace muster {

struct TrainerOptions {
  int64_t max_steps = 0;  ///< steps after which training is done, on all workers; 0: the loop decides
  int accumulate = 1;     ///< batches for one step: their gradients are averaged before anything is sent
  Schedule schedule;      ///< factors on the learning rate, by step; empty: 1
  double clip_norm = 0;   ///< the averaged gradient is scaled down to this norm; 0: never
  double loss_scale = 0;  ///< for 16-bit gradients: what the loss is multiplied by at first; 0: not at all
  bool broadcast_buffers = true;  ///< the chief's buffers (of BatchNorm) go to all workers after each step
};

/// What an evaluation adds up, by name.
using Sums = std::map<std::string, double>;

class Trainer {
 public:
  using Loss = std::function<torch::Tensor()>;

  /// Called by all workers. Throws InvalidArgument, on all workers, when their models differ, naming the
  /// first difference, and for a parameter that another Trainer trains.
  Trainer(Job& job, torch::nn::Module& module, UpdateRulePtr rule, TrainerOptions options = {});
  template <typename Contained>
  Trainer(Job& job, const torch::nn::ModuleHolder<Contained>& module, UpdateRulePtr rule,
          TrainerOptions options = {})
      : Trainer(job, *module.ptr(), std::move(rule), std::move(options)) {}
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Computes the loss of a batch and its gradients; with the last batch of `accumulate`, updates the
  /// parameters. `samples` is the size of the batch: batches of different sizes count accordingly, and the
  /// metrics know samples. False when training is done; then nothing was computed.
  bool step(const Loss& loss, int64_t samples = 0);

  /// This worker has no more data: takes part in the others' steps, bringing nothing, until all have called
  /// join(). Then everyone may go on, with another epoch. Meanwhile this worker's other Trainers take no steps:
  /// with parameter servers the other workers' do not wait for it, by all-reduce they do, in vain.
  void join();

  bool done() const;             ///< max_steps have been taken
  int64_t steps() const;         ///< updates of the parameters so far
  double learning_rate() const;  ///< of the next step

  /// Called before each step that this worker computes, and after each update of the parameters, in the
  /// order in which they were added.
  void before_step(std::function<void()> hook);
  void after_step(std::function<void()> hook);

  /// Runs `body` without gradients and with the module in evaluation mode, with the chief's buffers, after
  /// which this worker has its own again; gives what all workers added up, together. Called by all workers,
  /// each for its part of the data.
  Sums evaluate(const std::function<void(Sums& sums)>& body);

  /// Runs `body`, which changes parameters in place, once for each copy of them; the others wait. Called by
  /// all workers.
  void change_parameters(const std::function<void()>& body);

  Metrics metrics() const;
  void reset_metrics();

  /// How this job trains, for people: one line.
  std::string explain() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster
