#include "muster/collective/native/native_engine.h"

#include <algorithm>

#include "muster/base/copy.h"
#include "muster/base/cpu.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/tune.h"
#include "muster/collective/algorithm_choice.h"
#include "muster/collective/native/memory_link.h"
#include "muster/collective/native/native_host.h"

namespace muster::detail {
namespace {

// Measured (docs/collectives.md): large enough that to wait for all ranks at each costs little, small enough
// for the cache.
constexpr size_t kStagedSegment = size_t{128} * 1024;
constexpr size_t kLinkSegment = size_t{512} * 1024;
// What goes through several stages, or must not be changed, is done in passes over parts of this size.
constexpr size_t kPass = size_t{8} * 1024 * 1024;

}  // namespace

NativeEngine::NativeEngine(const Communicator::Options& options, const std::shared_ptr<HostMemory>& memory,
                           GroupState& state)
    : options_(options),
      state_(state),
      error_(state.error),
      memory_(memory ? memory : std::make_shared<HostMemory>(options.arena_capacity)) {
  if (options_.size == 1) {
    topology_ = Topology::one_host(1);
    ranks_.resize(1);
  } else {
    // The ranks of a split have connected before: what could be shared was.
    begin(connect_ranks(options_, *memory_, /*may_retry=*/memory == nullptr));
  }
}

NativeEngine::~NativeEngine() {
  warn_of_algorithm();
  watch_.reset();
  for (void* pipe : pipes_of_others_) HostMemory::release(pipe);
  for (void* pipe : own_pipes_) {
    HostMemory::release(pipe);
    memory_->retire(pipe);
  }
}

void NativeEngine::begin(ConnectedRanks connected) {
  id_ = connected.id;
  ranks_ = std::move(connected.ranks);
  topology_ = Topology(connected.host_of_rank);
  const auto rank = static_cast<size_t>(options_.rank);
  std::vector<int64_t> on_machine;
  for (const auto& info : ranks_) {
    if (info.machine == ranks_[rank].machine) on_machine.push_back(info.pid);
  }
  const int cores = available_cores(on_machine);
  spin_policy_ = SpinPolicy::of(static_cast<int>(on_machine.size()), cores);
  if (!connected.host_peers.empty()) {
    std::vector<HostPeer> peers;
    int index = 0;
    for (auto& [peer_rank, peer] : connected.host_peers) {
      if (peer_rank == options_.rank) {
        index = static_cast<int>(peers.size());
        rank_state_ = peer.state;
      }
      peers.push_back(std::move(peer));
    }
    host_ = std::make_unique<HostGroup>(*memory_, std::move(peers), index, cores);
    in_memory_ =
        std::make_unique<MemoryExecutor>(*host_, options_.segment > 0 ? options_.segment : kStagedSegment);
  }
  watch_ = std::make_unique<PeerWatch>(PeerWatch::Options{.group = options_.name,
                                                          .rank = options_.rank,
                                                          .ranks = ranks_,
                                                          .stall_warning = options_.stall_warning,
                                                          .on_failure = [this] { wake_self(); }},
                                       std::move(connected.connections), state_);
  over_links_ = make_executor({.name = "collectives", .number = 0, .sends = true});
}

void NativeEngine::wake_self() {
  if (rank_state_ != nullptr) wake(rank_state_->doorbell);
}

std::shared_ptr<void> NativeEngine::allocate(size_t bytes) {
  const auto arena = memory_->arena();
  return {arena->allocate(bytes), [arena](void* data) { arena->free(data); }};
}

std::unique_ptr<Engine> NativeEngine::split(const std::string& name, const std::vector<int>& members,
                                            int rank, const Rendezvous& rendezvous, GroupState& state) {
  Communicator::Options options = options_;
  options.name = name;
  options.rank = rank;
  options.size = static_cast<int>(members.size());
  options.rendezvous = rendezvous;
  options.tasks.clear();
  for (const int member : members) options.tasks.push_back(task_of(member));
  // The ranks that share memory are those that do so here.
  options.host_identity = fmt::format("host {} of {}", topology_->host_of(options_.rank), id_);
  return std::make_unique<NativeEngine>(options, memory_, state);
}

void NativeEngine::abort(const std::string& reason) {
  // A peer may have said why already, and others may hear it from us first: all are to give the same reason.
  if (watch_) watch_->hear();
  error_.set(GroupError::Kind::kAborted, reason);
  if (watch_) watch_->tell(error_.kind(), error_.message());
  wake_self();
}

std::unique_ptr<SharedHost> NativeEngine::share_host(Communicator& communicator) {
  if (!host_) return Engine::share_host(communicator);
  return std::make_unique<NativeHost>(NativeHost::Options{.communicator = communicator,
                                                          .group = *host_,
                                                          .memory = memory_,
                                                          .error = error_,
                                                          .ranks = ranks_,
                                                          .peers = *watch_});
}

const Plan& NativeEngine::plan_of(const Operation& operation) {
  const Algorithm algorithm = choose_algorithm(operation, *topology_, options_.algorithm);
  const bool rooted =
      operation.collective == Collective::kBroadcast || operation.collective == Collective::kReduce;
  const std::tuple key(operation.collective, algorithm, rooted ? operation.peer : 0);
  if (last_plan_ != nullptr && last_key_ == key) return *last_plan_;
  auto found = plans_.find(key);
  if (found == plans_.end()) {
    found = plans_
                .emplace(key, make_plan(operation.collective, algorithm, options_.rank, *topology_,
                                        std::get<int>(key)))
                .first;
  }
  last_key_ = key;
  last_plan_ = &found->second;
  return found->second;
}

// A barrier has no data, by whose way somebody could care.
void NativeEngine::warn_of_algorithm() const {
  const Algorithm wanted = options_.algorithm;
  if (options_.rank != 0 || wanted == Algorithm::kAuto) return;
  std::map<std::string, const char*> used;
  for (const auto& [key, plan] : plans_) {
    const auto collective = std::get<Collective>(key);
    if (collective == Collective::kBarrier) continue;
    if (plan.algorithm == wanted) return;
    used[name_of(collective)] = name_of(plan.algorithm);
  }
  std::string ways;
  for (const auto& [collective, algorithm] : used)
    ways += fmt::format("{}{} went by {}", ways.empty() ? "" : ", ", collective, algorithm);
  if (!used.empty()) log_warning("--algorithm {} had no effect: {}", name_of(wanted), ways);
}

std::string NativeEngine::explain(const Operation& operation) const {
  if (options_.size == 1) return "alone";
  const Algorithm algorithm = choose_algorithm(operation, *topology_, options_.algorithm);
  const Plan plan = make_plan(operation.collective, algorithm, options_.rank, *topology_, operation.peer);
  std::string media;
  for (const auto& stage : plan.stages) {
    if (stage.steps.empty()) continue;
    media += fmt::format("{}{}", media.empty() ? "" : ", then ",
                         stage.medium == Medium::kMemory ? "shared memory" : "links");
  }
  return fmt::format("{} through {}, {} kernels", name_of(algorithm), media, kernels().name);
}

void NativeEngine::run(const Operation& operation, uint64_t number, Deadline deadline) {
  if (options_.size == 1) {
    error_.check(operation.to_string());
    if (operation.in != operation.out && operation.count > 0)
      copy_bytes(operation.out, operation.in, operation.bytes());
    return;
  }
  const bool message =
      operation.collective == Collective::kSend || operation.collective == Collective::kReceive;
  OperationWait waiting;
  const OperationContext context = {.called = operation,
                                    .operation = operation,
                                    .number = number,
                                    .deadline = deadline,
                                    .error = error_,
                                    .group = options_.name,
                                    .ranks = ranks_,
                                    .peers = *watch_,
                                    .wait = &waiting};
  ScopedWait wait(options_.waits, [&] {
    WaitFor wait_for = {.what = context.during(), .tasks = {}, .limit = WaitLimit::kOwn};
    if (!message) wait_for.meeting = fmt::format("{} {}", id_, number);
    for (const int rank : waiting.ranks) wait_for.tasks.push_back(task_of(rank));
    return wait_for;
  });
  waiting.wait = &wait;
  if (error_.raised()) error_.check(context.during());
  try {
    if (message) {
      run_message(context);
    } else {
      run_collective(context);
    }
  } catch (const InvalidArgument&) {
    if (error_.raised()) watch_->tell(GroupError::Kind::kMismatch, error_.message());
    throw;
  } catch (const DeadlineExceeded& error) {
    error_.set(GroupError::Kind::kDeadline, error.what());
    watch_->tell(GroupError::Kind::kDeadline, error_.message());
    throw;
  }
}

const std::string& NativeEngine::task_of(int rank) const {
  return ranks_[static_cast<size_t>(rank)].task;
}

void NativeEngine::run_collective(const OperationContext& context) {
  if (context.operation.collective == Collective::kBarrier) {
    // A barrier is the smallest all-reduce there is.
    int8_t nothing = 0;
    Operation operation = context.operation;
    operation.in = operation.out = &nothing;
    operation.count = 1;
    operation.dtype = DType::kInt8;
    return run_plan(context.with(operation), plan_of(context.operation));
  }
  run_plan(context, plan_of(context.operation));
}

void NativeEngine::run_plan(const OperationContext& context, const Plan& plan) {
  const bool memory = plan.stages.front().medium == Medium::kMemory && host_;
  if (memory && plan.algorithm == Algorithm::kExchange && options_.algorithm == Algorithm::kAuto &&
      context.operation.collective == Collective::kAllReduce) {
    if (!direct_) direct_ = make_plan(Collective::kAllReduce, Algorithm::kDirect, options_.rank, *topology_);
    return in_memory_->run_small(context, plan, *direct_);
  }
  if (plan.stages.size() == 1) return memory ? in_memory_->run(context, plan) : run_over_links(context, plan);
  if (plan.algorithm == Algorithm::kDoubling) {
    in_memory_->run_exchange(context, plan.stages[0].steps.front());
    const Operation& operation = context.operation;
    return over_links_->run(context, plan.stages[1], BlockLayout(operation.count, plan.blocks), operation.out,
                            operation.out);
  }
  run_in_passes(context, plan);
}

// A hierarchical plan works in place on memory that the host's ranks can reach.
void NativeEngine::run_in_passes(const OperationContext& context, const Plan& plan) {
  const Operation& operation = context.operation;
  const size_t size = size_of(operation.dtype);
  const auto run_pass = [&](const Operation& pass) {
    const OperationContext inner = context.with(pass);
    if (host_) in_memory_->begin(inner);
    for (const auto& stage : plan.stages) {
      if (stage.medium == Medium::kLinks) {
        if (!stage.steps.empty())
          over_links_->run(inner, stage, BlockLayout(pass.count, plan.blocks), pass.out, pass.out);
      } else if (host_) {
        in_memory_->run_stage(inner, plan, stage);
      }
    }
    if (host_) in_memory_->end(inner);
  };
  auto* const data = static_cast<std::byte*>(operation.out);
  const bool reachable = !host_ || memory_->arena()->contains(data, operation.bytes());
  // All ranks make the same passes, whether their memory can be reached or not.
  for (size_t at = 0; at < std::max<size_t>(operation.count, 1); at += kPass / size) {
    Operation pass = operation;
    pass.count = std::min(kPass / size, operation.count - at);
    if (reachable) {
      pass.in = pass.out = data + at * size;
      run_pass(pass);
      continue;
    }
    if (!staging_) staging_ = allocate(kPass);
    pass.in = pass.out = staging_.get();
    copy_bytes(pass.out, data + at * size, pass.bytes());
    run_pass(pass);
    copy_bytes(data + at * size, pass.out, pass.bytes());
  }
}

// Plans over links work in place, on the output where there is room for all blocks, else on a copy, in
// passes.
void NativeEngine::run_over_links(const OperationContext& context, const Plan& plan) {
  const Operation& operation = context.operation;
  const size_t size = size_of(operation.dtype);
  const Stage& stage = plan.stages.front();
  const auto ranks = static_cast<size_t>(options_.size);
  const auto rank = static_cast<size_t>(options_.rank);
  auto* const out = static_cast<std::byte*>(operation.out);
  const auto* const in = static_cast<const std::byte*>(operation.in);
  switch (operation.collective) {
    case Collective::kAllGather:
      if (out + rank * operation.bytes() != in)
        copy_bytes(out + rank * operation.bytes(), in, operation.bytes());
      return over_links_->run(context, stage, BlockLayout(operation.count * ranks, plan.blocks), out, out);
    case Collective::kAllToAll:
      copy_bytes(out + rank * operation.bytes(), in + rank * operation.bytes(), operation.bytes());
      return over_links_->run(context, stage, BlockLayout(operation.count * ranks, plan.blocks), in, out);
    case Collective::kReduce:
      if (options_.rank == operation.peer) break;
      [[fallthrough]];
    case Collective::kReduceScatter: {
      const size_t blocks = operation.collective == Collective::kReduce ? 1 : ranks;
      const size_t pass = std::max<size_t>(kPass / size / blocks, 1);
      std::vector<std::byte> work(blocks * std::min(pass, operation.count) * size);
      for (size_t at = 0; at < std::max<size_t>(operation.count, 1); at += pass) {
        const size_t length = std::min(pass, operation.count - at);
        for (size_t block = 0; block < blocks; ++block) {
          copy_bytes(work.data() + block * length * size, in + (block * operation.count + at) * size,
                     length * size);
        }
        over_links_->run(context, stage, BlockLayout(blocks * length, plan.blocks), work.data(), work.data());
        if (blocks > 1) copy_bytes(out + at * size, work.data() + rank * length * size, length * size);
      }
      return;
    }
    default:
      break;
  }
  if (operation.collective == Collective::kReduce) {
    const size_t pass = std::max<size_t>(kPass / size, 1);  // as the others do it
    for (size_t at = 0; at < std::max<size_t>(operation.count, 1); at += pass) {
      const size_t length = std::min(pass, operation.count - at);
      over_links_->run(context, stage, BlockLayout(length, plan.blocks), out + at * size, out + at * size);
    }
    return;
  }
  over_links_->run(context, stage, BlockLayout(operation.count, plan.blocks), out, out);
}

void NativeEngine::run_message(const OperationContext& context) {
  const Operation& operation = context.operation;
  const bool sending = operation.collective == Collective::kSend;
  Stage stage;
  if (sending) {
    stage.steps = {{.sends = {{operation.peer, {0, 1}}}, .receives = {}}};
  } else {
    stage.steps = {{.sends = {}, .receives = {{operation.peer, {0, 1}, Action::kOverwrite}}}};
  }
  message_executor(operation.peer, sending)
      .run(context, stage, BlockLayout(operation.count, 1), operation.in, sending ? nullptr : operation.out);
}

LinkExecutor& NativeEngine::message_executor(int peer, bool sending) {
  const MutexLock lock(mutex_);
  auto& executor = message_executors_[{peer, sending}];
  if (!executor) {
    const int from = sending ? options_.rank : peer;
    executor = make_executor({.name = fmt::format("messages from {}", from), .number = 1, .sends = sending});
  }
  return *executor;
}

std::unique_ptr<LinkExecutor> NativeEngine::make_executor(const Channel& channel) {
  return std::make_unique<LinkExecutor>(
      LinkExecutor::Options{.rank = options_.rank,
                            .link = [this, channel](int peer, const OperationContext& context) -> Link& {
                              return link_to(peer, channel, context);
                            },
                            .doorbell = rank_state_ != nullptr ? &rank_state_->doorbell : nullptr,
                            .wake_fd = watch_->wake_fd(),
                            .spin_policy = spin_policy_,
                            .segment = options_.segment > 0 ? options_.segment : kLinkSegment,
                            .wire_dtype = options_.wire_dtype});
}

// Made when first needed. Between hosts the higher rank connects; inside one, each side makes the pipe that
// it fills and shows where it is. Each channel is used by one thread.
Link& NativeEngine::link_to(int peer, const Channel& channel, const OperationContext& context) {
  MutexLock lock(mutex_);
  auto& link = links_[{peer, channel.name}];
  lock.unlock();
  if (!link) {
    const bool local = topology_->host_of(peer) == topology_->host_of(options_.rank);
    link = local ? make_memory_link(peer, channel) : make_tcp_link(peer, channel, context);
  }
  return *link;
}

std::unique_ptr<Link> NativeEngine::make_tcp_link(int peer, const Channel& channel,
                                                  const OperationContext& context) {
  const RankInfo& info = ranks_[static_cast<size_t>(peer)];
  const int me = options_.rank;
  const auto check = [&] { context.check([&] { return std::vector{peer}; }); };
  std::vector<Connection> connections;
  for (int i = 0; i < options_.sockets; ++i) {
    const std::string channel_name =
        fmt::format("{}/{}/{}/{}-{}", id_, channel.name, i, std::min(me, peer), std::max(me, peer));
    try {
      connections.push_back(peer > me ? options_.endpoint->accept(channel_name, context.deadline, check)
                                      : options_.endpoint->connect(Address::parse(info.address), channel_name,
                                                                   context.deadline));
    } catch (const PeerLost& error) {
      context.connection_broke(peer, error.what());
    }
  }
  return std::make_unique<TcpLink>(std::move(connections));
}

std::unique_ptr<Link> NativeEngine::make_memory_link(int peer, const Channel& channel) {
  const int index = host_->index_of(peer);
  const HostPeer& other = host_->peer(index);
  MemoryPipe* ours = nullptr;
  if (channel.sends) {
    ours = new (memory_->allocate(sizeof(MemoryPipe), 2)) MemoryPipe;
    const MutexLock lock(mutex_);
    own_pipes_.push_back(ours);
    rank_state_->pipe(channel.number, host_->size(), index).exchange(memory_->arena()->offset_of(ours));
    wake(other.state->doorbell);
  }
  // Where the peer's pipe is; nullptr while it has none.
  const auto find = [this, other, number = channel.number]() -> MemoryPipe* {
    const uint64_t offset = other.state->pipe(number, host_->size(), host_->index()).load();
    if (offset == 0) return nullptr;
    auto* theirs = reinterpret_cast<MemoryPipe*>(other.arena->at(offset));
    const MutexLock lock(mutex_);
    pipes_of_others_.push_back(theirs);
    return theirs;
  };
  return std::make_unique<MemoryLink>(ours, find, &other.state->doorbell);
}

}  // namespace muster::detail
