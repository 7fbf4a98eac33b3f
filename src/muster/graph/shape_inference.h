#pragma once

// The types and sizes of a node's results, before anything is computed: the operator is run on examples that
// have sizes and types but no data (libtorch's device "meta"). A size that depends on that of the batch is
// found by running it for several sizes of batches, and taking it as linear in them. Numbers that operators
// compute from sizes (aten::size, and what follows in traced modules) are examples too, so that they are
// seen through.
//
// A few operators that libtorch 1.13 can't run so are in a table (shape_functions.cc). Any other is unknown
// until it runs: that is no error.
//
// Pure functions.

#include <array>
#include <optional>
#include <vector>

#include <ATen/core/ivalue.h>

#include "muster/graph.h"

namespace muster::detail {

/// The sizes of batches that are tried. Divisible by all numbers up to 10, and by 16, since models cut and
/// fold them; three, to tell what is linear in the batch from what is not.
constexpr std::array<int64_t, 3> kExampleBatches = {5040, 10080, 20160};

/// A value for each size of the batch: tensors without data, numbers, lists.
using Examples = std::array<c10::IValue, kExampleBatches.size()>;

struct GraphNode;

/// Fills in what is known of the node's outputs. Throws InvalidArgument, with the node and libtorch's own
/// words, where the operator refuses arguments of these types and sizes. `listed` is the number of results of
/// an operator that gives a list, for where sizes do not tell it; 0: they have to.
void infer_outputs(GraphNode& node, size_t listed = 0);

/// Examples of a tensor of this type and shape, which is known.
Examples examples_of(at::ScalarType dtype, const Shape& shape);

/// The shape of tensors as these, if they are linear in the batch.
Shape shape_of(const Examples& examples);

/// The results of the few operators that have no meta function, for arguments that are as in the operator's
/// schema. Empty for all others.
std::optional<std::vector<c10::IValue>> apply_shape_function(const std::string& op,
                                                             const std::vector<c10::IValue>& arguments);

}  // namespace muster::detail
