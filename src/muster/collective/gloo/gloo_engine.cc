#include "muster/collective/gloo/gloo_engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "muster/base/convert.h"
#include "muster/base/error.h"
#include "muster/base/text.h"
#include "muster/base/wait_registry.h"
#include "muster/collective/engine_loader.h"
#include "muster/collective/kernels.h"
#include "muster/net/address.h"
#include "muster/net/host.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;

constexpr int kMessageTag = 1;
constexpr int kBreakTag = 2;
// gloo has a limit of its own for each wait; ours are shorter.
constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
constexpr auto kWatchInterval = 20ms;

std::chrono::milliseconds remaining(Deadline deadline) {
  if (deadline.is_never()) return kLongest;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
  return std::clamp<std::chrono::milliseconds>(left, 1ms, kLongest);  // to c10d, 0 would be for ever
}

// c10d works on it in threads of its own, where the caller's InferenceMode is not.
at::Tensor tensor_of(const void* data, size_t count, at::ScalarType type) {
  const c10::InferenceMode ordinary(false);
  return at::from_blob(const_cast<void*>(data), {static_cast<int64_t>(count)}, at::TensorOptions(type));
}

at::Tensor bytes_of(const void* data, size_t bytes) {
  return tensor_of(data, bytes, at::kChar);
}

at::ScalarType type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return at::kDouble;
    case DType::kInt8:
      return at::kChar;
    case DType::kInt32:
      return at::kInt;
    case DType::kInt64:
      return at::kLong;
    default:
      return at::kFloat;
  }
}

c10d::ReduceOp operation_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
    default:
      return c10d::ReduceOp::SUM;
  }
}

// Integers in the order of the numbers, and what is no number where it wins: above all others for a maximum,
// below for a minimum. The same function leads back, but for which NaN it was.
template <typename Integer, typename Float>
void exchange_for_keys(std::byte* data, size_t count, bool is_max) {
  constexpr Integer kMost = std::numeric_limits<Integer>::max();  // the bits of a NaN; so are those of ~kMost
  for (size_t i = 0; i < count; ++i, data += sizeof(Float)) {
    Float value;
    Integer bits;
    std::memcpy(&value, data, sizeof(value));
    std::memcpy(&bits, data, sizeof(bits));
    if (std::isnan(value)) bits = is_max ? kMost : Integer{-1};
    if (bits < 0) bits ^= kMost;
    std::memcpy(data, &bits, sizeof(bits));
  }
}

template <typename Integer>
void exchange_for_numbers(std::byte* data, size_t count) {
  for (size_t i = 0; i < count; ++i, data += sizeof(Integer)) {
    Integer bits;
    std::memcpy(&bits, data, sizeof(bits));
    if (bits < 0) bits ^= std::numeric_limits<Integer>::max();
    std::memcpy(data, &bits, sizeof(bits));
  }
}

// A copy of what is to be reduced, in a type that gloo can reduce. Its minimum and maximum of floats lose
// what is no number, or not, by the order in which they come: so those are found of integers.
class Copy {
 public:
  explicit Copy(const Operation& operation)
      : operation_(operation),
        dtype_(size_of(operation.dtype) == 2 ? DType::kFloat32 : operation.dtype),
        has_keys_(needs_keys(operation)),
        data_(operation.count * size_of(dtype_)) {
    convert(operation.dtype, operation.in, dtype_, data_.data(), operation.count);
    const bool is_max = operation.op == ReduceOp::kMax;
    if (has_keys_ && dtype_ == DType::kFloat32)
      exchange_for_keys<int32_t, float>(data_.data(), operation.count, is_max);
    if (has_keys_ && dtype_ == DType::kFloat64)
      exchange_for_keys<int64_t, double>(data_.data(), operation.count, is_max);
  }

  static bool is_needed(const Operation& operation) {
    return size_of(operation.dtype) == 2 || needs_keys(operation);
  }

  DType dtype() const {
    if (!has_keys_) return dtype_;
    return dtype_ == DType::kFloat32 ? DType::kInt32 : DType::kInt64;
  }
  void* data() { return data_.data(); }

  void store() {
    if (has_keys_ && dtype_ == DType::kFloat32) exchange_for_numbers<int32_t>(data_.data(), operation_.count);
    if (has_keys_ && dtype_ == DType::kFloat64) exchange_for_numbers<int64_t>(data_.data(), operation_.count);
    convert(dtype_, data_.data(), operation_.dtype, operation_.out, operation_.count);
  }

 private:
  static bool needs_keys(const Operation& operation) {
    const bool is_integer = operation.dtype == DType::kInt8 || operation.dtype == DType::kInt32 ||
                            operation.dtype == DType::kInt64;
    return !is_integer && (operation.op == ReduceOp::kMin || operation.op == ReduceOp::kMax);
  }

  const Operation& operation_;
  const DType dtype_;
  const bool has_keys_;
  std::vector<std::byte> data_;
};

}  // namespace

class GlooEngine::Group : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  void set_limit(std::chrono::milliseconds limit) {
    for (const auto& context : contexts_) context->setTimeout(limit);
  }

  // Closes all connections: a receive that runs into its limit does that, and nothing else can.
  void break_up() {
    int8_t nothing = 0;
    std::vector<at::Tensor> tensors = {bytes_of(&nothing, 1)};
    try {
      recv(tensors, getRank() == 0 ? 1 : 0, kBreakTag)->wait(1ms);
    } catch (const std::exception&) {
    }
  }
};

GlooEngine::GlooEngine(const Communicator::Options& options, GroupState& state)
    : LibraryEngine(options, state) {
  if (options.size == 1) {
    set_hosts({""});
    return;
  }
  const Deadline deadline = Deadline::after(options.rendezvous_timeout);
  find_ranks(deadline);
  connect(deadline);
}

GlooEngine::GlooEngine(const Communicator::Options& options, GroupState& state, const Shared& shared,
                       const std::vector<std::string>& hosts)
    : LibraryEngine(options, state), shared_(shared) {
  set_hosts(hosts);
  if (options.size > 1) connect(Deadline::after(options.rendezvous_timeout));
}

GlooEngine::~GlooEngine() {
  if (!watch_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  watch_.join();
}

// Rank 0 hosts the store, and tells the others where. A text is the rank's host, and of rank 0 also the
// store's address or why there is none.
void GlooEngine::find_ranks(Deadline deadline) {
  const std::string address = options().endpoint->address().host;
  std::string mine = options().host_identity.empty() ? Host::local().identity : options().host_identity;
  c10d::TCPStoreOptions store = {
      .port = 0, .isServer = true, .waitWorkers = false, .timeout = remaining(deadline)};
  if (options().rank == 0) {
    try {
      const auto made = c10::make_intrusive<c10d::TCPStore>(address, store);
      shared_.store = made;
      mine += fmt::format("\n{}\n", Address{address, made->getPort()}.to_string());
    } catch (const std::exception& error) {
      mine += "\n\n" + text_without_stack(error);
    }
  }
  std::vector<std::string> hosts;
  std::vector<std::string> parts;
  for (const auto& text : options().rendezvous(mine, deadline)) {
    if (hosts.empty()) parts = muster::detail::split(text, '\n');
    hosts.push_back(text.substr(0, text.find('\n')));
  }
  set_hosts(hosts);
  if (parts.size() < 3 || parts[1].empty()) {
    raise<SystemError>("rank 0 of {} can't host a store for gloo: {}", options().name,
                       parts.size() < 3 ? "it did not say why" : parts[2]);
  }
  try {
    if (options().rank != 0) {
      const Address server = Address::parse(parts[1]);
      store.port = static_cast<uint16_t>(server.port);
      store.isServer = false;
      shared_.store = c10::make_intrusive<c10d::TCPStore>(server.host, store);
    }
    shared_.device = c10d::ProcessGroupGloo::createDeviceForHostname(address);
  } catch (const std::exception& error) {
    raise<PeerLost>("the ranks of {} could not connect: {}", options().name, text_without_stack(error));
  }
}

void GlooEngine::connect(Deadline deadline) {
  auto group = c10d::ProcessGroupGloo::Options::create(remaining(deadline));
  group->devices.push_back(shared_.device);
  group->threads = 1;  // collectives come one at a time
  try {
    group_ = c10::make_intrusive<Group>(c10::make_intrusive<c10d::PrefixStore>(options().name, shared_.store),
                                        options().rank, options().size, group);
  } catch (const std::exception& error) {
    if (deadline.expired())
      raise<DeadlineExceeded>("the ranks of {} could not connect: {}", options().name,
                              text_without_stack(error));
    raise<PeerLost>("the ranks of {} could not connect: {}", options().name, text_without_stack(error));
  }
  group_->set_limit(kLongest);
  watch_ = std::thread([this] { watch(); });
}

std::unique_ptr<Engine> GlooEngine::split(const std::string& name, const std::vector<int>& members, int rank,
                                          const Rendezvous& /*rendezvous*/, GroupState& state) {
  return std::unique_ptr<Engine>(
      new GlooEngine(options_of(name, members, rank), state, shared_, hosts_of(members)));
}

std::string GlooEngine::explain(const Operation& /*operation*/) const {
  return "gloo through c10d";
}

void GlooEngine::watch() {
  MutexLock lock(mutex_);
  while (!stopping_ && !group_error().raised()) changed_.wait_for(lock, kWatchInterval);
  if (!stopping_) group_->break_up();
}

void GlooEngine::run_work(const Start& start, Deadline deadline) {
  c10::intrusive_ptr<c10d::Work> work;
  std::string reason = "interrupted";
  try {
    work = start();
    if (!work->isCompleted()) show_wait();
    if (work->wait(remaining(deadline))) return;
  } catch (const std::exception& error) {
    reason = text_without_stack(error);
  }
  const bool late = deadline.expired();
  // Without connections it ends soon, and then nothing uses the buffers any more.
  group_->break_up();
  while (work && !work->isCompleted()) std::this_thread::sleep_for(1ms);
  if (group_error().raised()) throw Interrupted();
  if (late) raise<DeadlineExceeded>("the others did not come in time");
  raise<PeerLost>("gloo lost a rank: {}", reason);
}

void GlooEngine::run_collective(const Operation& operation, Deadline deadline) {
  switch (operation.collective) {
    case Collective::kAllReduce:
      return all_reduce(operation, deadline);
    case Collective::kReduceScatter:
      return reduce_scatter(operation, deadline);
    case Collective::kAllGather:
      return gather(operation.in, operation.out, operation.bytes(), deadline);
    case Collective::kBroadcast: {
      std::vector<at::Tensor> tensors = {bytes_of(operation.out, operation.bytes())};
      return run_work([&] { return group_->broadcast(tensors, {.rootRank = operation.peer}); }, deadline);
    }
    case Collective::kReduce:
      return reduce_to_root(operation, deadline);
    case Collective::kAllToAll:
      return all_to_all(operation.in, operation.out, operation.bytes(), deadline);
    default:
      MUSTER_CHECK(false, "{} is not for gloo", operation.to_string());
  }
}

void GlooEngine::all_reduce(const Operation& operation, Deadline deadline) {
  const auto reduce = [&](void* data, DType dtype) {
    std::vector<at::Tensor> tensors = {tensor_of(data, operation.count, type_of(dtype))};
    run_work([&] { return group_->allreduce(tensors, {.reduceOp = operation_of(operation.op)}); }, deadline);
    finish_average(operation, dtype, data);
  };
  if (!Copy::is_needed(operation)) return reduce(operation.out, operation.dtype);
  Copy copy(operation);
  reduce(copy.data(), copy.dtype());
  copy.store();
}

// On a copy, since gloo uses the buffers of all ranks to work in.
void GlooEngine::reduce_to_root(const Operation& operation, Deadline deadline) {
  Copy copy(operation);
  std::vector<at::Tensor> tensors = {tensor_of(copy.data(), operation.count, type_of(copy.dtype()))};
  run_work(
      [&] {
        return group_->reduce(tensors, {.reduceOp = operation_of(operation.op), .rootRank = operation.peer});
      },
      deadline);
  if (operation.peer != options().rank) return;
  finish_average(operation, copy.dtype(), copy.data());
  copy.store();
}

void GlooEngine::reduce_scatter(const Operation& operation, Deadline deadline) {
  const auto ranks = static_cast<size_t>(options().size);
  std::vector<std::byte> blocks(ranks * operation.bytes());
  all_to_all(operation.in, blocks.data(), operation.bytes(), deadline);
  std::vector<const void*> sources;
  for (size_t rank = 0; rank < ranks; ++rank) sources.push_back(blocks.data() + rank * operation.bytes());
  void* const out = operation.out;
  kernels().reduce({.dtype = operation.dtype,
                    .op = operation.op,
                    .divisor = operation.op == ReduceOp::kAverage ? options().size : 1},
                   sources, {&out, 1}, operation.count);
}

void GlooEngine::all_to_all(const void* in, void* out, size_t bytes, Deadline deadline) {
  const auto ranks = static_cast<size_t>(options().size);
  at::Tensor sent = bytes_of(in, ranks * bytes);
  at::Tensor received = bytes_of(out, ranks * bytes);
  std::vector<int64_t> equal_parts;
  run_work([&] { return group_->alltoall_base(received, sent, equal_parts, equal_parts); }, deadline);
}

void GlooEngine::gather(const void* mine, void* all, size_t bytes, Deadline deadline) {
  std::vector<at::Tensor> inputs = {bytes_of(mine, bytes)};
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (size_t rank = 0; rank < static_cast<size_t>(options().size); ++rank)
    outputs[0].push_back(bytes_of(static_cast<std::byte*>(all) + rank * bytes, bytes));
  run_work([&] { return group_->allgather(outputs, inputs); }, deadline);
}

void GlooEngine::send(const void* data, size_t bytes, int to, Deadline deadline) {
  std::vector<at::Tensor> tensors = {bytes_of(data, bytes)};
  run_work([&] { return group_->send(tensors, to, kMessageTag); }, deadline);
}

void GlooEngine::receive(void* data, size_t bytes, int from, Deadline deadline) {
  std::vector<at::Tensor> tensors = {bytes_of(data, bytes)};
  run_work([&] { return group_->recv(tensors, from, kMessageTag); }, deadline);
}

}  // namespace muster::detail

extern "C" const muster::detail::EngineModule* muster_engine_module() {
  static const muster::detail::EngineModule module = {
      .version = MUSTER_VERSION,
      .make = [](const muster::Communicator::Options& options,
                 muster::detail::GroupState& state) -> std::unique_ptr<muster::detail::Engine> {
        return std::make_unique<muster::detail::GlooEngine>(options, state);
      }};
  return &module;
}
