#include "muster/communicator.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <map>

#include <fmt/ranges.h>

#include "muster/base/error.h"
#include "muster/base/fast_clock.h"
#include "muster/base/log.h"
#include "muster/base/mutex.h"
#include "muster/collective/communicator_options.h"
#include "muster/collective/engine_loader.h"
#include "muster/collective/native/native_engine.h"
#include "muster/collective/operation_queue.h"

namespace muster {
namespace {

// How many operations are logged when one stalls or fails: those before it are seldom to blame.
constexpr size_t kLogged = 8;

}  // namespace

using namespace detail;

struct Communicator::Core {
  const std::string description;  // of the rank, for messages: "rank 2 of world"
  GroupState state;
  std::unique_ptr<OperationQueue> collectives;
  std::unique_ptr<Engine> engine;
  int splits = 0;

  Mutex host_mutex;
  std::unique_ptr<SharedHost> host MUSTER_GUARDED_BY(host_mutex);

  Mutex mutex;
  // By peer, and whether it sends.
  std::map<std::pair<int, bool>, std::unique_ptr<OperationQueue>> message_queues MUSTER_GUARDED_BY(mutex);

  // The last collective whose stall was logged with those before it; kNoMore once one has failed by its
  // deadline.
  static constexpr uint64_t kNoMore = std::numeric_limits<uint64_t>::max();
  std::atomic<uint64_t> logged = 0;

  /// All of them; they live as long as this.
  std::vector<OperationQueue*> queues();

  explicit Core(const Options& options)
      : description(fmt::format("rank {} of {}", options.rank, options.name)) {
    collectives = std::make_unique<OperationQueue>(execute(), options.waits);
    state.activity = [this] { return collectives->activity(); };
    state.log_history = [this] { log_history(collectives->activity().number); };
  }

  // Logs the last operations, unless that was done for as many before.
  void log_history(uint64_t mark) {
    if (logged.exchange(mark) >= collectives->activity().number) return;
    log_warning("the last operations of {}: {}", description, fmt::join(collectives->history(kLogged), "; "));
  }

  OperationQueue::Execute execute() {
    return [this](const Operation& operation, uint64_t number, Deadline deadline) {
      try {
        engine->run(operation, number, deadline);
      } catch (const DeadlineExceeded&) {
        log_history(kNoMore);
        throw;
      }
    };
  }
};

struct Work::State {
  OperationQueue* queue = nullptr;
  std::shared_ptr<OperationQueue::Item> item;
  GroupState* group = nullptr;
};

void Work::wait(std::optional<Deadline> deadline) {
  if (!state_->queue->wait(*state_->item, deadline.value_or(Deadline::never()))) {
    state_->group->log_history();
    state_->group->error.fail(
        GroupError::Kind::kDeadline,
        fmt::format("{} was not done when its waiter gave up", state_->item->operation.to_string()),
        fmt::format("number {}", state_->item->number));
  }
  if (state_->item->error) std::rethrow_exception(state_->item->error);
}

bool Work::done() const {
  return state_->queue->done(*state_->item);
}

Communicator::Communicator(const Options& options) : Communicator(options, std::make_unique<Core>(options)) {
  if (size_ < 1 || rank_ < 0 || rank_ >= size_)
    raise<InvalidArgument>("rank {} of {} is not in the group", rank_, size_);
  if (options_->wire_dtype && *options_->wire_dtype != DType::kFloat16 &&
      *options_->wire_dtype != DType::kBFloat16)
    raise<InvalidArgument>("sums can travel as float16 or bfloat16, not as {}",
                           name_of(*options_->wire_dtype));
  if (options_->engine == "native") {
    core_->engine = std::make_unique<NativeEngine>(*options_, nullptr, core_->state);
  } else {
    core_->engine = load_engine(*options_, core_->state);
  }
}

Communicator::Communicator(const Options& options, std::unique_ptr<Core> core)
    : rank_(options.rank),
      size_(options.size),
      options_(std::make_unique<Options>(options)),
      core_(std::move(core)) {}

const std::string& Communicator::name() const {
  return options_->name;
}

std::vector<OperationQueue*> Communicator::Core::queues() {
  std::vector<OperationQueue*> all = {collectives.get()};
  const MutexLock lock(mutex);
  for (const auto& [peer, queue] : message_queues) all.push_back(queue.get());
  return all;
}

void Communicator::finish() {
  for (auto* queue : core_->queues()) queue->finish();
}

Communicator::~Communicator() {
  if (!core_->state.error.raised() && std::uncaught_exceptions() == 0) {
    for (const auto* queue : core_->queues()) {
      if (const std::string left = queue->in_flight(); !left.empty())
        log_warning("{}: not done when the group ends, and dropped: {}; wait() for it before",
                    core_->description, left);
    }
  }
  // Whoever still runs an operation must end before the engine goes.
  core_->state.error.set(GroupError::Kind::kAborted, "the communicator is being destroyed");
  core_->message_queues.clear();
  core_->collectives->stop();
}

const Topology& Communicator::topology() const {
  return core_->engine->topology();
}

std::shared_ptr<void> Communicator::allocate(size_t bytes) {
  return core_->engine->allocate(bytes);
}

SharedHost& Communicator::host() {
  const MutexLock lock(core_->host_mutex);
  if (!core_->host) core_->host = core_->engine->share_host(*this);
  return *core_->host;
}

void Communicator::check(const std::string& during) const {
  core_->state.error.check(during);
}

void Communicator::wait_broken(Deadline deadline) const {
  core_->state.error.wait_raised(deadline);
}

void Communicator::abort(const std::string& reason) {
  core_->engine->abort(reason);
}

std::string Communicator::history() const {
  std::string text;
  for (const auto& line : core_->collectives->history(std::numeric_limits<size_t>::max()))
    text += line + "\n";
  return text;
}

std::string Communicator::explain(const Operation& operation) const {
  return core_->engine->explain(operation);
}

Operation Communicator::checked(Operation operation) const {
  if (operation.peer < 0 || operation.peer >= size_)
    raise<InvalidArgument>("{}: there is no rank {} in {}, which has {}", operation.to_string(),
                           operation.peer, options_->name, size_);
  const bool message =
      operation.collective == Collective::kSend || operation.collective == Collective::kReceive;
  if (message && operation.peer == rank_)
    raise<InvalidArgument>("{}: a rank can't {} itself", operation.to_string(),
                           operation.collective == Collective::kSend ? "send to" : "receive from");
  if (operation.count > 0 && (operation.in == nullptr || operation.out == nullptr))
    raise<InvalidArgument>("{}: the buffer is null", operation.to_string());
  return operation;
}

OperationQueue& Communicator::queue_of(const Operation& operation) {
  const bool sending = operation.collective == Collective::kSend;
  if (!sending && operation.collective != Collective::kReceive) return *core_->collectives;
  const MutexLock lock(core_->mutex);
  auto& queue = core_->message_queues[{operation.peer, sending}];
  if (!queue) queue = std::make_unique<OperationQueue>(core_->execute(), options_->waits);
  return *queue;
}

void Communicator::run(const Operation& operation, std::optional<Deadline> deadline) {
  queue_of(operation).run(checked(operation),
                          deadline.value_or(Deadline::at(coarse_now() + options_->timeout)));
}

Work Communicator::submit(const Operation& operation, std::shared_ptr<const void> keep) {
  Work work;
  work.state_ = std::make_shared<Work::State>();
  work.state_->queue = &queue_of(operation);
  work.state_->group = &core_->state;
  work.state_->item =
      work.state_->queue->submit(checked(operation), Deadline::after(options_->timeout), std::move(keep));
  return work;
}

namespace {

Operation all_reduce_of(void* data, size_t count, DType dtype, ReduceOp op) {
  return {Collective::kAllReduce, data, data, count, dtype, op, 0};
}

Operation moving(Collective collective, const void* in, void* out, size_t count, DType dtype) {
  return {collective, in, out, count, dtype, ReduceOp::kSum, 0};
}

Operation with_peer(Operation operation, int peer) {
  operation.peer = peer;
  return operation;
}

Operation reduce_of(Collective collective, const void* in, void* out, size_t count, DType dtype,
                    ReduceOp op) {
  return {collective, in, out, count, dtype, op, 0};
}

Operation send_of(const void* data, size_t count, DType dtype, int to) {
  return {Collective::kSend, data, const_cast<void*>(data), count, dtype, ReduceOp::kSum, to};
}

}  // namespace

void Communicator::all_reduce(void* data, size_t count, DType dtype, ReduceOp op,
                              std::optional<Deadline> deadline) {
  run(all_reduce_of(data, count, dtype, op), deadline);
}

Work Communicator::all_reduce_async(void* data, size_t count, DType dtype, ReduceOp op) {
  return submit(all_reduce_of(data, count, dtype, op));
}

void Communicator::reduce_scatter(const void* in, void* out, size_t count, DType dtype, ReduceOp op,
                                  std::optional<Deadline> deadline) {
  run(reduce_of(Collective::kReduceScatter, in, out, count, dtype, op), deadline);
}

Work Communicator::reduce_scatter_async(const void* in, void* out, size_t count, DType dtype, ReduceOp op) {
  return submit(reduce_of(Collective::kReduceScatter, in, out, count, dtype, op));
}

void Communicator::all_gather(const void* in, void* out, size_t count, DType dtype,
                              std::optional<Deadline> deadline) {
  run(moving(Collective::kAllGather, in, out, count, dtype), deadline);
}

Work Communicator::all_gather_async(const void* in, void* out, size_t count, DType dtype) {
  return submit(moving(Collective::kAllGather, in, out, count, dtype));
}

void Communicator::broadcast(void* data, size_t count, DType dtype, int root,
                             std::optional<Deadline> deadline) {
  run(with_peer(moving(Collective::kBroadcast, data, data, count, dtype), root), deadline);
}

Work Communicator::broadcast_async(void* data, size_t count, DType dtype, int root) {
  return submit(with_peer(moving(Collective::kBroadcast, data, data, count, dtype), root));
}

void Communicator::reduce(void* data, size_t count, DType dtype, ReduceOp op, int root,
                          std::optional<Deadline> deadline) {
  run(with_peer(reduce_of(Collective::kReduce, data, data, count, dtype, op), root), deadline);
}

Work Communicator::reduce_async(void* data, size_t count, DType dtype, ReduceOp op, int root) {
  return submit(with_peer(reduce_of(Collective::kReduce, data, data, count, dtype, op), root));
}

void Communicator::all_to_all(const void* in, void* out, size_t count, DType dtype,
                              std::optional<Deadline> deadline) {
  run(moving(Collective::kAllToAll, in, out, count, dtype), deadline);
}

Work Communicator::all_to_all_async(const void* in, void* out, size_t count, DType dtype) {
  return submit(moving(Collective::kAllToAll, in, out, count, dtype));
}

void Communicator::barrier(std::optional<Deadline> deadline) {
  run({}, deadline);
}

void Communicator::send(const void* data, size_t count, DType dtype, int to,
                        std::optional<Deadline> deadline) {
  run(send_of(data, count, dtype, to), deadline);
}

Work Communicator::send_async(const void* data, size_t count, DType dtype, int to) {
  return submit(send_of(data, count, dtype, to));
}

void Communicator::receive(void* data, size_t count, DType dtype, int from,
                           std::optional<Deadline> deadline) {
  run(with_peer(moving(Collective::kReceive, data, data, count, dtype), from), deadline);
}

Work Communicator::receive_async(void* data, size_t count, DType dtype, int from) {
  return submit(with_peer(moving(Collective::kReceive, data, data, count, dtype), from));
}

std::unique_ptr<Communicator> Communicator::split(int colour, int key) {
  const int32_t mine[2] = {colour, key};
  std::vector<int32_t> all(2 * static_cast<size_t>(size_));
  all_gather(mine, all.data(), 2, DType::kInt32);
  const auto colour_of = [&](int rank) { return all[2 * static_cast<size_t>(rank)]; };
  const auto key_of = [&](int rank) { return all[2 * static_cast<size_t>(rank) + 1]; };
  std::vector<int> members;
  for (int rank = 0; rank < size_; ++rank) {
    if (colour >= 0 && colour_of(rank) == colour) members.push_back(rank);
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return key_of(a) < key_of(b); });

  // The members of all colours find each other at the same time, through this group; each round brings up to
  // 1,000 bytes.
  constexpr size_t kRoom = 1024;
  const auto gather = [this](const std::string& text, Deadline deadline) {
    if (text.size() > kRoom - 2)
      raise<InvalidArgument>("{} bytes are too many for a rendezvous", text.size());
    std::vector<char> in(kRoom);
    in[0] = static_cast<char>(text.size() % 256);
    in[1] = static_cast<char>(text.size() / 256);
    memcpy(in.data() + 2, text.data(), text.size());
    std::vector<char> out(kRoom * static_cast<size_t>(size_));
    all_gather(in.data(), out.data(), kRoom, DType::kInt8, deadline);
    return out;
  };
  const auto text_of = [](const std::vector<char>& gathered, int rank) {
    const char* at = gathered.data() + kRoom * static_cast<size_t>(rank);
    const size_t size = static_cast<unsigned char>(at[0]) + size_t{256} * static_cast<unsigned char>(at[1]);
    return std::string(at + 2, std::min(size, kRoom - 2));
  };
  const int number = ++core_->splits;
  constexpr int kRounds = 2;
  int rounds = 0;
  const Rendezvous rendezvous = [&](const std::string& text, Deadline deadline) {
    ++rounds;
    const auto gathered = gather(text, deadline);
    std::vector<std::string> texts;
    for (const int rank : members) texts.push_back(text_of(gathered, rank));
    return texts;
  };

  std::unique_ptr<Communicator> made;
  if (!members.empty()) {
    Options options = *options_;
    options.name = fmt::format("{}/{}.{}", options_->name, number, colour);
    options.size = static_cast<int>(members.size());
    options.rank = static_cast<int>(std::find(members.begin(), members.end(), rank_) - members.begin());
    options.rendezvous = nullptr;
    auto core = std::make_unique<Core>(options);
    core->engine = core_->engine->split(options.name, members, options.rank, rendezvous, core->state);
    made.reset(new Communicator(options, std::move(core)));
  }
  while (rounds < kRounds) rendezvous("", Deadline::after(options_->timeout));  // alone, or without a group
  return made;
}

}  // namespace muster
