#pragma once

// The collectives and messages of a Communicator (communicator.h), with tensors in place of buffers.
//
//   muster::Communicator& workers = job.communicator();
//   muster::broadcast(workers, weights, /*root=*/0);                          // in place
//   muster::all_reduce(workers, loss, muster::ReduceOp::kAverage);            // in place
//   torch::Tensor all = muster::all_gather(workers, predictions);             // [workers.size(), ...]
//   muster::TensorWork work = muster::all_gather_async(workers, predictions); // many may be in flight
//   all = work.wait();
//
// Tensors are dense ones on the CPU, of a type that DType has; they may have any strides, also others on each
// rank. One that is contiguous is used where it lies: nothing is copied, and nothing at all inside a host
// when it lies in memory of Communicator::allocate. Any other goes through a contiguous copy. All ranks pass
// tensors of the same type and the same number of elements. Shapes are not compared: where they differ,
// elements are matched in row-major order.
//
// Autograd does not look into these operations, as under torch::NoGradGuard: results require no gradient, and
// parameters may be changed in place. Such a change counts as one, so that a backward pass that needs the
// values from before is refused.
//
// Threads, the order of calls, deadlines and errors are those of the Communicator, which outlives what is in
// flight. Beyond these, all throw InvalidArgument for a tensor that is undefined, of another type, layout or
// device, or that is to be changed and has several elements in one place (expand). Then nothing was sent, and
// the other ranks still wait for this one. After another error the contents of what was to be changed are
// undefined.

#include <memory>
#include <optional>

#include <torch/types.h>

#include "muster/communicator.h"
#include "muster/deadline.h"

namespace muster {

/// An operation on tensors in flight, as the functions with _async give it. Copies stand for the same one;
/// any thread may use them. It may be dropped: the tensors are kept until the operation is done, which the
/// end of the job waits for. Nobody else may write to them until then, nor read those that it changes.
class TensorWork {
 public:
  /// Blocks until it is done, and gives the tensor with the result: for an operation in place, and for a
  /// send, the one that was passed. Throws as Work::wait does.
  torch::Tensor wait(std::optional<Deadline> deadline = {});

  bool done() const;  ///< Whether wait() would not block.

  /// For Muster's own rooms.
  struct State;
  explicit TensorWork(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

/// tensor = op over all ranks' tensors, on every rank.
void all_reduce(Communicator& ranks, const torch::Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                std::optional<Deadline> deadline = {});
TensorWork all_reduce_async(Communicator& ranks, const torch::Tensor& tensor, ReduceOp op = ReduceOp::kSum);

/// The tensor of every rank becomes that of the root.
void broadcast(Communicator& ranks, const torch::Tensor& tensor, int root,
               std::optional<Deadline> deadline = {});
TensorWork broadcast_async(Communicator& ranks, const torch::Tensor& tensor, int root);

/// The tensor of the root becomes op over all ranks' tensors; the others keep theirs.
void reduce(Communicator& ranks, const torch::Tensor& tensor, ReduceOp op, int root,
            std::optional<Deadline> deadline = {});
TensorWork reduce_async(Communicator& ranks, const torch::Tensor& tensor, ReduceOp op, int root);

/// The tensors of all ranks, stacked in their order: of shape [size, ...].
torch::Tensor all_gather(Communicator& ranks, const torch::Tensor& tensor,
                         std::optional<Deadline> deadline = {});
TensorWork all_gather_async(Communicator& ranks, const torch::Tensor& tensor);

/// Dimension 0 is cut in size() equal parts: gives op over all ranks' part number rank(). Throws
/// InvalidArgument when it can't be cut so.
torch::Tensor reduce_scatter(Communicator& ranks, const torch::Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                             std::optional<Deadline> deadline = {});
TensorWork reduce_scatter_async(Communicator& ranks, const torch::Tensor& tensor,
                                ReduceOp op = ReduceOp::kSum);

/// Dimension 0 is cut in size() equal parts: part q goes to rank q, and part q of the result comes from rank
/// q. Throws InvalidArgument when it can't be cut so.
torch::Tensor all_to_all(Communicator& ranks, const torch::Tensor& tensor,
                         std::optional<Deadline> deadline = {});
TensorWork all_to_all_async(Communicator& ranks, const torch::Tensor& tensor);

/// Messages between two ranks. The one who receives has a tensor of the same type and size for it. A send
/// returns when the tensor may be changed again.
void send(Communicator& ranks, const torch::Tensor& tensor, int to, std::optional<Deadline> deadline = {});
TensorWork send_async(Communicator& ranks, const torch::Tensor& tensor, int to);
void receive(Communicator& ranks, const torch::Tensor& tensor, int from,
             std::optional<Deadline> deadline = {});
TensorWork receive_async(Communicator& ranks, const torch::Tensor& tensor, int from);

}  // namespace muster
