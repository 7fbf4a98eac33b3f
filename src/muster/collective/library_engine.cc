#include "muster/collective/library_engine.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>

#include <fmt/format.h>

#include "muster/base/copy.h"
#include "muster/base/error.h"
#include "muster/base/wait_registry.h"
#include "muster/collective/kernels.h"

namespace muster::detail {
namespace {

constexpr size_t kPage = 4096;

// A rank that knows of a mismatch waits this long for the others to know it too.
constexpr auto kFarewell = std::chrono::seconds(5);

}  // namespace

// What a rank called, as the others see it.
struct LibraryEngine::Signature {
  uint64_t number = 0;
  uint64_t count = 0;
  int32_t root = 0;
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  uint8_t unused = 0;

  static Signature of(const Operation& operation, uint64_t number) {
    const bool rooted =
        operation.collective == Collective::kBroadcast || operation.collective == Collective::kReduce;
    return {.number = number,
            .count = operation.count,
            .root = rooted ? operation.peer : 0,
            .collective = operation.collective,
            .dtype = operation.dtype,
            .op = operation.reduces() ? operation.op : ReduceOp::kSum};
  }

  std::string to_string() const {
    const Operation operation = {
        .collective = collective, .count = count, .dtype = dtype, .op = op, .peer = root};
    return fmt::format("{} as number {}", operation.to_string(), number);
  }

  bool operator==(const Signature&) const = default;
};

LibraryEngine::LibraryEngine(const Communicator::Options& options, GroupState& state)
    : options_(options), state_(state) {
  if (options_.algorithm != Algorithm::kAuto) {
    raise<InvalidArgument>("the engine '{}' chooses its algorithms itself: leave --algorithm at auto, not {}",
                           options_.engine, name_of(options_.algorithm));
  }
  if (options_.wire_dtype) {
    raise<InvalidArgument>("the engine '{}' sends elements as they are: leave --wire at same, not {}",
                           options_.engine, name_of(*options_.wire_dtype));
  }
}

void LibraryEngine::set_hosts(const std::vector<std::string>& host_of_rank) {
  std::map<std::string, int> numbers;
  std::vector<int> hosts;
  for (const auto& host : host_of_rank)
    hosts.push_back(numbers.emplace(host, static_cast<int>(numbers.size())).first->second);
  topology_.emplace(hosts);
}

Communicator::Options LibraryEngine::options_of(const std::string& name, const std::vector<int>& members,
                                                int rank) const {
  Communicator::Options options = options_;
  options.name = name;
  options.rank = rank;
  options.size = static_cast<int>(members.size());
  options.rendezvous = nullptr;
  options.tasks.clear();
  for (const int member : members) {
    if (static_cast<size_t>(member) < options_.tasks.size())
      options.tasks.push_back(options_.tasks[static_cast<size_t>(member)]);
  }
  return options;
}

std::vector<std::string> LibraryEngine::hosts_of(const std::vector<int>& members) const {
  std::vector<std::string> hosts;
  for (const int member : members) hosts.push_back(std::to_string(topology_->host_of(member)));
  return hosts;
}

std::shared_ptr<void> LibraryEngine::allocate(size_t bytes) {
  const size_t whole = std::max<size_t>((bytes + kPage - 1) / kPage, 1) * kPage;
  void* const memory = std::aligned_alloc(kPage, whole);
  if (memory == nullptr) raise<SystemError>("there is no memory for {} bytes", bytes);
  return {memory, std::free};
}

void LibraryEngine::abort(const std::string& reason) {
  group_error().set(GroupError::Kind::kAborted, reason);
}

void LibraryEngine::finish_average(const Operation& operation, DType dtype, void* sum) const {
  if (operation.op != ReduceOp::kAverage) return;
  const std::array<const void*, 1> sources = {sum};
  const std::array<void*, 1> destinations = {sum};
  kernels().reduce({.dtype = dtype, .op = ReduceOp::kAverage, .divisor = options_.size}, sources,
                   destinations, operation.count);
}

// Who has not come only the library knows: those who are not in the same collective, `number` of them all; 0:
// a message.
WaitFor LibraryEngine::wait_for(const Operation& operation, const std::string& during,
                                uint64_t number) const {
  WaitFor wait = {.what = during, .tasks = {}, .limit = WaitLimit::kOwn};
  if (number > 0) wait.meeting = fmt::format("{} {}", options_.name, number);
  for (int rank = 0; rank < static_cast<int>(options_.tasks.size()); ++rank) {
    if (rank != options_.rank && (number > 0 || rank == operation.peer))
      wait.tasks.push_back(options_.tasks[static_cast<size_t>(rank)]);
  }
  return wait;
}

void LibraryEngine::run(const Operation& operation, uint64_t number, Deadline deadline) {
  const auto during = [&] {
    return fmt::format("{} number {} of {}", operation.to_string(), number, options_.name);
  };
  if (group_error().raised()) group_error().check(during());
  const bool is_message =
      operation.collective == Collective::kSend || operation.collective == Collective::kReceive;
  const ScopedWait wait(options_.waits,
                        [&] { return wait_for(operation, during(), is_message ? 0 : number); });
  try {
    const Signature mine = Signature::of(operation, number);
    if (is_message) return run_message(operation, mine, deadline);
    if (options_.size == 1) {
      if (operation.in != operation.out && operation.count > 0)
        copy_bytes(operation.out, operation.in, operation.bytes());
      return;
    }
    compare(mine, deadline);
    // A barrier is done when all have come.
    if (operation.collective != Collective::kBarrier && operation.count > 0)
      run_collective(operation, deadline);
    return;
  } catch (const Interrupted&) {
  } catch (const DeadlineExceeded& error) {
    group_error().set(GroupError::Kind::kDeadline, error.what());
  } catch (const PeerLost& error) {
    group_error().set(GroupError::Kind::kPeerLost, error.what());
  } catch (const std::exception& error) {
    group_error().set(GroupError::Kind::kAborted, error.what());
  }
  group_error().check(during());
}

void LibraryEngine::compare(const Signature& mine, Deadline deadline) {
  std::vector<Signature> all(static_cast<size_t>(options_.size));
  gather(&mine, all.data(), sizeof(mine), deadline);
  const auto differs = [&](const Signature& theirs) { return theirs != all.front(); };
  const auto other = std::find_if(all.begin(), all.end(), differs);
  if (other == all.end()) return;
  const std::string message = fmt::format("rank {} called {}, rank 0 called {}", other - all.begin(),
                                          other->to_string(), all.front().to_string());
  // Others may still need this rank to learn the same.
  try {
    gather(&mine, all.data(), sizeof(mine), deadline.earlier(Deadline::after(kFarewell)));
  } catch (const Interrupted&) {
  } catch (const Error&) {
  }
  group_error().set(GroupError::Kind::kMismatch, message);
  throw Interrupted();
}

void LibraryEngine::run_message(const Operation& operation, const Signature& mine, Deadline deadline) {
  if (operation.collective == Collective::kSend) {
    send(&mine, sizeof(mine), operation.peer, deadline);
    if (operation.count > 0) send(operation.in, operation.bytes(), operation.peer, deadline);
    return;
  }
  Signature theirs;
  receive(&theirs, sizeof(theirs), operation.peer, deadline);
  if (theirs.count != mine.count || theirs.dtype != mine.dtype) {
    group_error().set(GroupError::Kind::kMismatch, fmt::format("rank {} sent {} x {}", operation.peer,
                                                               name_of(theirs.dtype), theirs.count));
    throw Interrupted();
  }
  if (operation.count > 0) receive(operation.out, operation.bytes(), operation.peer, deadline);
}

}  // namespace muster::detail
