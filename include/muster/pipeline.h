#pragma once

// Training a model that is cut over several tasks (its stages) as a pipeline: each batch goes through them in
// micro-batches, so that the stages work at the same time. Their gradients are added up, and the parameters
// change once a batch: the result is that of the whole batch on one task.
//
//   muster::Graph graph;
//   muster::TracedModule net = muster::trace(graph, module, {torch::zeros({2, 1, 28, 28})});
//   muster::place(graph, {{"encoder*", "/job:worker/task:0"}, {"decoder*", "/job:worker/task:1"}});
//   muster::Output labels = graph.placeholder("labels", torch::kLong, {muster::kBatch});
//   muster::Output loss = muster::ops::cross_entropy_loss(net.outputs[0], labels);
//   muster::Pipeline pipeline = muster::minimize_in_pipeline(muster::optim::SGD({.lr = 0.1}), loss,
//                                                            {.micro_batches = 8});
//   session.run({pipeline.loss}, {{pipeline.batch(net.inputs[0]), images},
//                                 {pipeline.batch(labels), targets}}, {pipeline.train});
//
// The nodes that the loss was made of stay as they are, for evaluation: they use the same variables.

#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "muster/graph.h"

namespace muster {

/// The order in which a stage takes the forward and backward passes of micro-batches. All give the same
/// gradients.
enum class PipelineSchedule {
  kGPipe,       ///< All forward, then all backward: holds what backward needs of all micro-batches.
  k1F1B,        ///< One forward, one backward by turns: of as many at most as there are stages from here on.
  kZeroBubble,  ///< As 1F1B, but for the first and last micro-batches the gradients of a stage's parameters
  ///< come when it has nothing else to do; those of its inputs, for which the stage before waits, come first.
  ///< The idle time is that of ZB-H1, a third of 1F1B's. At most as many micro-batches are held as there are
  ///< stages.
};

struct PipelineOptions {
  int micro_batches = 8;
  PipelineSchedule schedule = PipelineSchedule::kZeroBubble;
  /// The loss is a sum over the batch; otherwise it is a mean. Where the nodes of the loss tell, they have to
  /// agree.
  bool loss_is_sum = false;
};

/// What a run of training feeds, fetches and runs.
struct Pipeline {
  /// The placeholders of the loss that have the batch as their first dimension, and those that stand for
  /// whole batches instead: their first size is a multiple of the number of micro-batches.
  std::vector<std::pair<Output, Output>> batches;
  Output loss;  ///< Of the whole batch: the mean of the micro-batches' losses, or their sum.
  Node train;

  /// The placeholder of whole batches for one of the loss. Throws InvalidArgument where there is none.
  Output batch(const Output& placeholder) const;
};

/// Says where nodes are by their names: the device of the first pattern that fits ("encoder*", with the
/// wildcards of a shell), for all that were made so far. Throws InvalidArgument for a pattern that fits no
/// node, and for what is no device.
void place(Graph& graph, const std::vector<std::pair<std::string, std::string>>& devices);

/// Adds nodes that compute the loss for each micro-batch, and the update of all trainable variables that it
/// depends on. The loss is a mean over the batch unless the options say that it is a sum. A stage is what has
/// the same device; a node without one belongs to the stage of what it takes. `lr`, a scalar, is the learning
/// rate of a step, where it is given. Throws InvalidArgument where the loss is no scalar, depends on no
/// variable or on no placeholder with a batch, and where it is neither a mean nor a sum over the batch: the
/// mean of a loss function with weights of classes or labels to ignore is none. Labels of -100, which
/// cross_entropy_loss and nll_loss ignore in any case, make the loss another one than that of the batch.
Pipeline minimize_in_pipeline(const optim::Optimizer& optimizer, const Output& loss,
                              const PipelineOptions& options = {}, const Output& lr = {},
                              std::source_location where = std::source_location::current());

}  // namespace muster
