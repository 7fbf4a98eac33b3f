#pragma once

// Trains a torch module on all workers of a job. The program keeps its loop; one call is one step:
//
//   muster::Trainer trainer(job, net, muster::optim::SGD({.lr = 0.05, .momentum = 0.9}),
//                           {.groups = {{.names = {"*.bias", "*norm*"}, .weight_decay = 0},
//                                       {.parameters = net->head->parameters(), .lr = 0.01},
//                                       {.names = {"backbone.*"}, .frozen = true}}});
//   for (auto& batch : batches_of_this_worker)
//     trainer.step([&] { return torch::mse_loss(net->forward(batch.data), batch.target); },
//                  batch.data.size(0));
//   trainer.finish_epoch();              // out of data; the others may have more
//
// All workers make their Trainer with the same model, and start from the chief's parameters and buffers. With
// --strategy allreduce, the default, and ps-sync each step averages the gradients of all workers and updates
// the parameters, equally on all: N workers with batches of B samples do what one would do with N·B. What
// the other strategies do with a gradient is in docs/parameter-server.md.
//
// While a Trainer lives, the parameters of the module are views of memory that the workers of a host share:
// read them as you like, but change them through change_parameters(). A change in place elsewhere is refused
// by name at the next step where it can't be right; alone, with an optimizer of torch's and with ps-local it
// is, if all workers make it. Other values may be loaded on all workers, by torch::load, between two steps:
// training goes on with the chief's; with parameter servers that is refused. Afterwards the parameters are
// the module's own again. (With an optimizer of torch's they stay the module's own.) Gradients are this
// worker's own during a step, and gone after it.
//
// A program may have several Trainers at a time, of models that share no trained parameter. A model's
// parameters change in its own Trainer's steps only, and only what those compute counts: gradients that
// another model's backward pass leaves on them are dropped. All workers make their Trainers in the same
// order, and take their steps in the same order.
//
// Not thread-safe: one thread trains. The constructors, step, finish_epoch, evaluate and change_parameters
// wait for the other workers where the strategy has them act together. They throw PeerLost for a worker or a
// server that is gone, DeadlineExceeded after --collective-timeout, Aborted when another task has ended the
// job; all name who. What fails on one worker ends the job on all: an exception from a step is final, thrown
// again by every later call, and what muster::run makes of it reaches the others as the reason.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include "muster/job.h"
#include "muster/metrics.h"
#include "muster/optim.h"
#include "muster/schedule.h"

namespace muster {

/// Parameters that are trained otherwise than the rest of the model. A name or a tensor that is no parameter
/// of the module is an InvalidArgument, and so is a group without any that no earlier group has.
struct ParameterGroup {
  std::vector<std::string> names;         ///< Names of parameters, as patterns of fnmatch(3): * is any text.
  std::vector<torch::Tensor> parameters;  ///< The parameters themselves, beside those that `names` finds.
  std::optional<double> lr;               ///< Their learning rate, before schedules; empty: the optimizer's.
  std::optional<double> weight_decay;     ///< Their weight decay; empty: the optimizer's.
  /// The Trainer sets requires_grad to false when it is made. Set it to true to train them from then on;
  /// with parameter servers that is refused.
  bool frozen = false;
};

struct TrainerOptions {
  /// How many epochs training is to take, for the progress line; it does not end training. 0: not said.
  int64_t epochs = 0;
  /// The samples of an epoch, of all workers together, for schedules in epochs and the progress line.
  int64_t samples_per_epoch = 0;
  /// Training is done after so many steps, on all workers; 0: the loop decides.
  int64_t max_steps = 0;
  /// The gradients of so many batches are averaged for one step, before anything is sent.
  int accumulate = 1;
  /// Factors on the learning rate (schedule.h); empty: 1.
  Schedule schedule;
  /// The averaged gradient is scaled down to this norm; 0: never.
  double clip_norm = 0;
  /// For 16-bit gradients: what the loss is multiplied by at first; 0: it is not scaled.
  double loss_scale = 0;
  /// With --strategy allreduce the chief's buffers (of BatchNorm) go to all workers after each step, with
  /// parameter servers only for an evaluation. False: each worker keeps its own, in evaluations too.
  bool broadcast_buffers = true;
  /// A parameter belongs to the first group that has it.
  std::vector<ParameterGroup> groups;
};

/// What a step gives. As a condition it says whether training goes on.
struct Step {
  double loss = 0;  ///< The loss of this worker's batch; Metrics::loss has the mean of all workers.
  /// False when training was done before this call, which then computed nothing. It is true of the last step
  /// too: Trainer::done() tells that it was the last.
  bool goes_on = true;

  explicit operator bool() const { return goes_on; }
};

/// What an evaluation adds up, by name.
using Sums = std::map<std::string, double>;

class Trainer {
 public:
  using Loss = std::function<torch::Tensor()>;

  /// Called by all workers; waits for them. The job must outlive the Trainer, and so must a module that is
  /// given by reference; a holder or a shared_ptr is kept. Throws InvalidArgument, on all workers, when their
  /// models or options differ, naming the first difference; for a parameter that another Trainer trains; and
  /// for options that make no sense. With parameter servers only the worker that differs from the chief
  /// throws it, which ends the job.
  Trainer(Job& job, torch::nn::Module& module, const optim::Optimizer& optimizer,
          TrainerOptions options = {});
  Trainer(Job& job, std::shared_ptr<torch::nn::Module> module, const optim::Optimizer& optimizer,
          TrainerOptions options = {});
  template <typename Contained>
  Trainer(Job& job, const torch::nn::ModuleHolder<Contained>& module, const optim::Optimizer& optimizer,
          TrainerOptions options = {})
      : Trainer(job, std::shared_ptr<torch::nn::Module>(module.ptr()), optimizer, std::move(options)) {}

  /// With an optimizer of torch's, or of your own, which must outlive the Trainer: each step averages the
  /// gradients of all workers and lets it step, on each worker alike. Only with --strategy allreduce, and not
  /// with LBFGS, which needs a closure. Its parameters must be the module's; its state, when it has any
  /// already, must be the same on all workers; of its options, the numbers of parameters in its groups and
  /// their rates are compared, and no others. Rates, weight decays and groups are its own business; a
  /// schedule multiplies the rates that its groups have now, for which their options must have get_lr() and
  /// set_lr(), and the destructor gives them back.
  Trainer(Job& job, torch::nn::Module& module, torch::optim::Optimizer& optimizer,
          TrainerOptions options = {});
  Trainer(Job& job, std::shared_ptr<torch::nn::Module> module, torch::optim::Optimizer& optimizer,
          TrainerOptions options = {});
  template <typename Contained>
  Trainer(Job& job, const torch::nn::ModuleHolder<Contained>& module, torch::optim::Optimizer& optimizer,
          TrainerOptions options = {})
      : Trainer(job, std::shared_ptr<torch::nn::Module>(module.ptr()), optimizer, std::move(options)) {}
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Computes the loss of a batch and its gradients; with the last batch of `accumulate`, updates the
  /// parameters. `samples` is the size of the batch: batches of different sizes count accordingly, and the
  /// metrics, the schedule and the progress line know samples. A batch of 0 samples is left out: it is no
  /// step. Throws InvalidArgument for a negative number, and where there is a schedule and no number.
  Step step(const Loss& loss, std::optional<int64_t> samples = std::nullopt);

  /// This worker has no more data: takes part in the others' steps, bringing nothing, until all have finished
  /// the epoch. Then everyone may go on, with another one. Meanwhile this worker's other Trainers take no
  /// steps: with parameter servers the other workers go on without it; with all-reduce their steps of those
  /// models wait for it until they time out.
  void finish_epoch();

  /// From now on each step shows how far training is, on standard error, as --progress says; only on the
  /// chief. `text` gives what is shown; without it, the epoch and the metrics.
  void show_progress(std::function<std::string()> text = {});

  bool done() const;             ///< Whether max_steps have been taken.
  int64_t steps() const;         ///< The steps so far, with those whose update was left out.
  Position position() const;     ///< How far the job has come.
  double learning_rate() const;  ///< The learning rate of the next step.

  /// Called before each step that this worker computes, and after each step in which it takes part, in the
  /// order in which they were added. With --strategy allreduce it takes part in all steps, also in those that
  /// others compute while it is in finish_epoch(); with parameter servers in its own. Neither sees a gradient:
  /// TrainerOptions::clip_norm clips.
  void before_step(std::function<void()> hook);
  void after_step(std::function<void()> hook);

  /// Runs `body` without gradients and with the module in evaluation mode, with the chief's buffers, after
  /// which this worker has its own again, whatever `body` wrote into them; gives what all workers added up,
  /// together. Called by all workers, each for its part of the data.
  Sums evaluate(const std::function<void(Sums& sums)>& body);

  /// Runs `body`, which changes parameters in place, once on each host, where the workers share one copy of
  /// the parameters; the other workers wait. (With an optimizer of torch's each worker has a copy, and runs
  /// it.) It must do the same everywhere. Called by all workers. Throws InvalidArgument with parameter
  /// servers, which hold what it can't reach.
  void change_parameters(const std::function<void()>& body);

  Metrics metrics() const;
  void reset_metrics();

  /// How this job trains, for people: one line.
  std::string explain() const;

 private:
  class Impl;
  std::shared_ptr<torch::nn::Module> module_;  // when it was given so
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster
