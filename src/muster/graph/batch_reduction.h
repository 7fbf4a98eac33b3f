#pragma once

// What a loss makes of the samples of a batch, as far as its nodes tell: for pipelines, which compute it for
// the parts of a batch and put these together.
//
//   batch_reduction(loss, nodes).kind == BatchReduction::kMean   // the parts' mean is the batch's loss

#include <string>
#include <vector>

#include "muster/graph/graph_node.h"

namespace muster::detail {

struct BatchReduction {
  enum Kind {
    kUnknown,
    kNothing,  ///< it does not depend on the batch
    kSamples,  ///< it has something for each sample
    kCount,    ///< the number of samples, or a multiple of it
    kMean,     ///< the parts' values average to that of the batch
    kSum,      ///< they add up to it
    kNeither,
  };
  Kind kind = kUnknown;
  std::string reason;  ///< of kNeither: which node it is because of, and what that does
};

/// Whether a node is a placeholder whose first dimension is the batch.
bool is_of_batches(const GraphNode& node);

/// `nodes` are all that the output needs, in the order of their numbers.
BatchReduction batch_reduction(const Output& output, const std::vector<GraphNode*>& nodes);

}  // namespace muster::detail
