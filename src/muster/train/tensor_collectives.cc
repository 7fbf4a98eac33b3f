#include "muster/tensor_collectives.h"

#include <string>
#include <utility>
#include <vector>

#include <ATen/MemoryOverlap.h>
#include <fmt/ranges.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/collective/operation.h"
#include "muster/train/tensor_dtype.h"

namespace muster {

using namespace detail;

struct TensorWork::State {
  Work work;
  const torch::Tensor result;
};

namespace {

using torch::Tensor;

struct TensorOperation {
  Operation operation;
  Tensor in;        // What is read, contiguous.
  Tensor out;       // What is written, contiguous.
  Tensor result;    // What the caller gets.
  Tensor computed;  // Where it is defined, the result is not contiguous, and becomes this in the end.
};

std::string description_of(const Tensor& tensor) {
  return fmt::format("a tensor of shape [{}] and type {}", fmt::join(tensor.sizes(), ", "),
                     c10::toString(tensor.scalar_type()));
}

std::string remedy_for_type(const Operation& operation, const Tensor& tensor) {
  if (tensor.is_complex()) return "torch::view_as_real(tensor)";
  if (tensor.is_quantized()) return "tensor.dequantize()";
  return operation.reduces() ? "what tensor.to() makes of it" : "its bytes, tensor.view(torch::kInt8)";
}

// Completes the operation with the type and the size of the tensor.
Operation checked(Operation operation, const Tensor& tensor) {
  const char* name = name_of(operation.collective);
  if (!tensor.defined())
    raise<InvalidArgument>("{}: the tensor is undefined: a gradient, say, that is not there yet", name);
  if (tensor.is_nested())
    raise<InvalidArgument>("{}: the tensor is nested: pass those of tensor.unbind() one by one", name);
  if (tensor.layout() != torch::kStrided)
    raise<InvalidArgument>("{}: {} has the layout {}: pass a dense one, as tensor.to_dense()", name,
                           description_of(tensor), c10::str(tensor.layout()));
  if (!tensor.device().is_cpu())
    raise<InvalidArgument>("{}: {} is on {}, and Muster works on the CPU: pass tensor.cpu()", name,
                           description_of(tensor), tensor.device().str());
  const auto dtype = dtype_of(tensor.scalar_type());
  if (!dtype)
    raise<InvalidArgument>("{}: {}: the type must be one of {}; pass {}", name, description_of(tensor),
                           names_of_dtypes(), remedy_for_type(operation, tensor));
  operation.dtype = *dtype;
  operation.count = static_cast<size_t>(tensor.numel());
  return operation;
}

TensorOperation reading(Operation operation, const Tensor& tensor) {
  const torch::NoGradGuard no_grad;
  // The tensor itself, unless its elements lie in another order, or with the opposite sign.
  const Tensor in = tensor.resolve_neg().contiguous();
  operation.in = operation.out = in.data_ptr();
  return {.operation = operation, .in = in, .out = in, .result = tensor, .computed = {}};
}

// `changes` says whether the tensor does on this rank.
TensorOperation in_place(const Operation& operation, const Tensor& tensor, bool changes = true) {
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
    raise<InvalidArgument>(
        "{}: {} with strides [{}] has several elements in one place, which can't change one by one: pass "
        "tensor.clone()",
        name_of(operation.collective), description_of(tensor), fmt::join(tensor.strides(), ", "));
  TensorOperation made = reading(operation, tensor);
  if (!changes) return made;
  if (made.in.is_same(tensor)) {
    tensor.unsafeGetTensorImpl()->bump_version();
  } else {
    made.computed = made.in;
  }
  return made;
}

// The result is a new tensor of this shape. What was passed has `parts` times as many elements as go to or
// come from one rank.
TensorOperation into_new(const Operation& operation, const Tensor& tensor, const std::vector<int64_t>& shape,
                         int parts) {
  TensorOperation made = reading(operation, tensor);
  made.result = made.out = torch::empty(shape, tensor.options());
  made.operation.out = made.out.data_ptr();
  made.operation.count /= static_cast<size_t>(parts);
  return made;
}

// Dimension 0 has a part for each rank.
Operation checked_parts(const Communicator& ranks, const Operation& operation, const Tensor& tensor) {
  Operation complete = checked(operation, tensor);
  if (tensor.dim() == 0 || tensor.size(0) % ranks.size() != 0)
    raise<InvalidArgument>(
        "{}: dimension 0 of {} can't be cut in {} equal parts, one for each rank of {}: pad it to a multiple "
        "of {}",
        name_of(operation.collective), description_of(tensor), ranks.size(), ranks.name(), ranks.size());
  return complete;
}

TensorOperation all_reduce_of(const Tensor& tensor, ReduceOp op) {
  return in_place(checked({.collective = Collective::kAllReduce, .op = op}, tensor), tensor);
}

TensorOperation broadcast_of(const Communicator& ranks, const Tensor& tensor, int root) {
  const auto operation = checked({.collective = Collective::kBroadcast, .peer = root}, tensor);
  return in_place(operation, tensor, ranks.rank() != root);
}

TensorOperation reduce_of(const Communicator& ranks, const Tensor& tensor, ReduceOp op, int root) {
  const auto operation = checked({.collective = Collective::kReduce, .op = op, .peer = root}, tensor);
  return in_place(operation, tensor, ranks.rank() == root);
}

TensorOperation all_gather_of(const Communicator& ranks, const Tensor& tensor) {
  const auto operation = checked({.collective = Collective::kAllGather}, tensor);
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape.insert(shape.begin(), ranks.size());
  return into_new(operation, tensor, shape, 1);
}

TensorOperation reduce_scatter_of(const Communicator& ranks, const Tensor& tensor, ReduceOp op) {
  const auto operation = checked_parts(ranks, {.collective = Collective::kReduceScatter, .op = op}, tensor);
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape[0] /= ranks.size();
  return into_new(operation, tensor, shape, ranks.size());
}

TensorOperation all_to_all_of(const Communicator& ranks, const Tensor& tensor) {
  const auto operation = checked_parts(ranks, {.collective = Collective::kAllToAll}, tensor);
  return into_new(operation, tensor, tensor.sizes().vec(), ranks.size());
}

TensorOperation send_of(const Tensor& tensor, int to) {
  return reading(checked({.collective = Collective::kSend, .peer = to}, tensor), tensor);
}

TensorOperation receive_of(const Tensor& tensor, int from) {
  return in_place(checked({.collective = Collective::kReceive, .peer = from}, tensor), tensor);
}

void write_result(const Tensor& result, const Tensor& computed) {
  const torch::NoGradGuard no_grad;
  result.copy_(computed);
}

Tensor carry_out(Communicator& ranks, const TensorOperation& made, std::optional<Deadline> deadline) {
  ranks.run(made.operation, deadline);
  if (made.computed.defined()) write_result(made.result, made.computed);
  return made.result;
}

// The tensors of an operation in flight. It goes when the operation is done, or never will be, before anybody
// is told so, on whichever thread that happens: then the result is written.
class InFlight {
 public:
  explicit InFlight(TensorOperation made) : made_(std::move(made)) {}
  ~InFlight() {
    if (!made_.computed.defined()) return;
    try {
      write_result(made_.result, made_.computed);
    } catch (const std::exception& error) {
      log_error("{}: the result could not be written: {}", made_.operation.to_string(),
                text_without_stack(error));
    }
  }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

 private:
  const TensorOperation made_;
};

TensorWork begin(Communicator& ranks, const TensorOperation& made) {
  Work work = ranks.submit(made.operation, std::make_shared<InFlight>(made));
  return TensorWork(std::make_shared<TensorWork::State>(TensorWork::State{std::move(work), made.result}));
}

}  // namespace

Tensor TensorWork::wait(std::optional<Deadline> deadline) {
  state_->work.wait(deadline);
  return state_->result;
}

bool TensorWork::done() const {
  return state_->work.done();
}

void all_reduce(Communicator& ranks, const Tensor& tensor, ReduceOp op, std::optional<Deadline> deadline) {
  carry_out(ranks, all_reduce_of(tensor, op), deadline);
}

TensorWork all_reduce_async(Communicator& ranks, const Tensor& tensor, ReduceOp op) {
  return begin(ranks, all_reduce_of(tensor, op));
}

void broadcast(Communicator& ranks, const Tensor& tensor, int root, std::optional<Deadline> deadline) {
  carry_out(ranks, broadcast_of(ranks, tensor, root), deadline);
}

TensorWork broadcast_async(Communicator& ranks, const Tensor& tensor, int root) {
  return begin(ranks, broadcast_of(ranks, tensor, root));
}

void reduce(Communicator& ranks, const Tensor& tensor, ReduceOp op, int root,
            std::optional<Deadline> deadline) {
  carry_out(ranks, reduce_of(ranks, tensor, op, root), deadline);
}

TensorWork reduce_async(Communicator& ranks, const Tensor& tensor, ReduceOp op, int root) {
  return begin(ranks, reduce_of(ranks, tensor, op, root));
}

Tensor all_gather(Communicator& ranks, const Tensor& tensor, std::optional<Deadline> deadline) {
  return carry_out(ranks, all_gather_of(ranks, tensor), deadline);
}

TensorWork all_gather_async(Communicator& ranks, const Tensor& tensor) {
  return begin(ranks, all_gather_of(ranks, tensor));
}

Tensor reduce_scatter(Communicator& ranks, const Tensor& tensor, ReduceOp op,
                      std::optional<Deadline> deadline) {
  return carry_out(ranks, reduce_scatter_of(ranks, tensor, op), deadline);
}

TensorWork reduce_scatter_async(Communicator& ranks, const Tensor& tensor, ReduceOp op) {
  return begin(ranks, reduce_scatter_of(ranks, tensor, op));
}

Tensor all_to_all(Communicator& ranks, const Tensor& tensor, std::optional<Deadline> deadline) {
  return carry_out(ranks, all_to_all_of(ranks, tensor), deadline);
}

TensorWork all_to_all_async(Communicator& ranks, const Tensor& tensor) {
  return begin(ranks, all_to_all_of(ranks, tensor));
}

void send(Communicator& ranks, const Tensor& tensor, int to, std::optional<Deadline> deadline) {
  carry_out(ranks, send_of(tensor, to), deadline);
}

TensorWork send_async(Communicator& ranks, const Tensor& tensor, int to) {
  return begin(ranks, send_of(tensor, to));
}

void receive(Communicator& ranks, const Tensor& tensor, int from, std::optional<Deadline> deadline) {
  carry_out(ranks, receive_of(tensor, from), deadline);
}

TensorWork receive_async(Communicator& ranks, const Tensor& tensor, int from) {
  return begin(ranks, receive_of(tensor, from));
}

}  // namespace muster
