#include "muster/collective/mpi/mpi_engine.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "muster/base/copy.h"
#include "muster/base/error.h"
#include "muster/base/wait_registry.h"
#include "muster/collective/engine_loader.h"
#include "muster/collective/mpi/mpi_library.h"

namespace muster::detail {
namespace {

using mpi::check;

// MPI counts with int, and some libraries multiply that with the number of ranks.
constexpr size_t kMostElements = size_t{1} << 30;

constexpr int kMessageTag = 1;
constexpr int kSplitTag = 2;
constexpr uint64_t kTestsBetweenLooks = 256;  // a look costs more than a test

}  // namespace

struct MpiEngine::Counted {
  const Operation& operation;
  MPI_Datatype type;
  size_t width;  // of an element, in bytes
  size_t count;  // of elements

  explicit Counted(const Operation& called)
      : operation(called),
        type(called.reduces() ? mpi::type_of(called.dtype) : MPI_BYTE),
        width(called.reduces() ? size_of(called.dtype) : 1),
        count(called.bytes() / width) {}
};

MpiEngine::MpiEngine(const Communicator::Options& options, GroupState& state)
    : LibraryEngine(options, state) {
  mpi::start();
  int rank = 0;
  int size = 0;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  if (rank != options.rank || size != options.size) {
    raise<InvalidArgument>(
        "this is rank {} of {} in {}, but {} of {} in MPI: with the engine 'mpi' a program runs under mpirun "
        "or srun, and all that they start is in the group",
        options.rank, options.size, options.name, rank, size);
  }
  const auto made = std::make_shared<MPI_Comm>(MPI_COMM_NULL);
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Comm_idup(MPI_COMM_WORLD, made.get(), &request), "MPI_Comm_idup");
  wait(request, Deadline::after(options.rendezvous_timeout), {.memory = made});
  communicator_ = *made;
  check(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  set_hosts(find_hosts());
}

MpiEngine::MpiEngine(const Communicator::Options& options, GroupState& state, MPI_Comm communicator,
                     const std::vector<std::string>& hosts)
    : LibraryEngine(options, state), communicator_(communicator) {
  check(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  set_hosts(hosts);
}

MpiEngine::~MpiEngine() {
  int finalised = 0;
  MPI_Finalized(&finalised);
  if (finalised == 0 && !mpi::unfinished()) MPI_Comm_free(&communicator_);
}

// Each rank's host, as the lowest rank on it.
std::vector<std::string> MpiEngine::find_hosts() const {
  MPI_Comm host = MPI_COMM_NULL;
  check(MPI_Comm_split_type(communicator_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
        "MPI_Comm_split_type");
  int lowest = options().rank;
  check(MPI_Bcast(&lowest, 1, MPI_INT, 0, host), "MPI_Bcast");
  check(MPI_Comm_free(&host), "MPI_Comm_free");
  std::vector<int> all(static_cast<size_t>(options().size));
  check(MPI_Allgather(&lowest, 1, MPI_INT, all.data(), 1, MPI_INT, communicator_), "MPI_Allgather");
  std::vector<std::string> hosts;
  for (const int rank : all) hosts.push_back(std::to_string(rank));
  return hosts;
}

std::unique_ptr<Engine> MpiEngine::split(const std::string& name, const std::vector<int>& members, int rank,
                                         const Rendezvous& /*rendezvous*/, GroupState& state) {
  // Not MPI_Comm_split, for which the ranks without a group would have to come too.
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group some = MPI_GROUP_NULL;
  MPI_Comm made = MPI_COMM_NULL;
  check(MPI_Comm_group(communicator_, &all), "MPI_Comm_group");
  check(MPI_Group_incl(all, static_cast<int>(members.size()), members.data(), &some), "MPI_Group_incl");
  check(MPI_Comm_create_group(communicator_, some, kSplitTag, &made), "MPI_Comm_create_group");
  check(MPI_Group_free(&some), "MPI_Group_free");
  check(MPI_Group_free(&all), "MPI_Group_free");
  return std::unique_ptr<Engine>(
      new MpiEngine(options_of(name, members, rank), state, made, hosts_of(members)));
}

std::string MpiEngine::explain(const Operation& /*operation*/) const {
  return fmt::format("as {} chooses", mpi::library_name());
}

void MpiEngine::run_collective(const Operation& operation, Deadline deadline) {
  const Counted counted(operation);
  switch (operation.collective) {
    case Collective::kReduceScatter:
    case Collective::kAllGather:
    case Collective::kAllToAll:
      run_blocks(counted, deadline);
      break;
    default:
      run_whole(counted, deadline);
  }
  const bool has_result = operation.collective != Collective::kReduce || operation.peer == options().rank;
  if (operation.reduces() && has_result) finish_average(operation, operation.dtype, operation.out);
}

size_t MpiEngine::most_elements(size_t width, size_t blocks) const {
  const size_t most = options().segment > 0 ? options().segment / width : kMostElements / blocks;
  return std::max<size_t>(most, 1);
}

void MpiEngine::run_whole(const Counted& counted, Deadline deadline) {
  const size_t most = most_elements(counted.width, 1);
  auto* const data = static_cast<std::byte*>(counted.operation.out);
  for (size_t at = 0; at < counted.count; at += most) {
    void* const segment = data + at * counted.width;
    wait(start(counted, segment, segment, static_cast<int>(std::min(most, counted.count - at))), deadline,
         {});
  }
}

void MpiEngine::run_blocks(const Counted& counted, Deadline deadline) {
  const Operation& operation = counted.operation;
  const auto ranks = static_cast<size_t>(options().size);
  const size_t most = most_elements(counted.width, ranks);
  if (counted.count <= most)
    return wait(start(counted, operation.in, operation.out, static_cast<int>(counted.count)), deadline, {});

  // A segment of every block, put side by side.
  const size_t in_blocks = operation.collective == Collective::kAllGather ? 1 : ranks;
  const size_t out_blocks = operation.collective == Collective::kReduceScatter ? 1 : ranks;
  const auto* const in = static_cast<const std::byte*>(operation.in);
  auto* const out = static_cast<std::byte*>(operation.out);
  const std::shared_ptr<void> memory = allocate((in_blocks + out_blocks) * most * counted.width);
  for (size_t at = 0; at < counted.count; at += most) {
    const size_t bytes = std::min(most, counted.count - at) * counted.width;
    auto* const sent = static_cast<std::byte*>(memory.get());
    auto* const received = sent + in_blocks * bytes;
    const auto offset_of = [&](size_t block) { return (block * counted.count + at) * counted.width; };
    for (size_t block = 0; block < in_blocks; ++block)
      copy_bytes(sent + block * bytes, in + offset_of(block), bytes);
    wait(start(counted, sent, received, static_cast<int>(bytes / counted.width)), deadline,
         {.memory = memory});
    for (size_t block = 0; block < out_blocks; ++block)
      copy_bytes(out + offset_of(block), received + block * bytes, bytes);
  }
}

MPI_Request MpiEngine::start(const Counted& counted, const void* in, void* out, int count) {
  const Operation& operation = counted.operation;
  const MPI_Datatype type = counted.type;
  MPI_Request request = MPI_REQUEST_NULL;
  switch (operation.collective) {
    case Collective::kAllReduce:
      check(MPI_Iallreduce(MPI_IN_PLACE, out, count, type, mpi::operation_of(operation.dtype, operation.op),
                           communicator_, &request),
            "MPI_Iallreduce");
      break;
    case Collective::kReduceScatter:
      check(MPI_Ireduce_scatter_block(in, out, count, type, mpi::operation_of(operation.dtype, operation.op),
                                      communicator_, &request),
            "MPI_Ireduce_scatter_block");
      break;
    case Collective::kAllGather: {
      const auto* const own =
          static_cast<std::byte*>(out) + static_cast<size_t>(options().rank) * static_cast<size_t>(count);
      check(MPI_Iallgather(in == own ? MPI_IN_PLACE : in, count, type, out, count, type, communicator_,
                           &request),
            "MPI_Iallgather");
      break;
    }
    case Collective::kBroadcast:
      check(MPI_Ibcast(out, count, type, operation.peer, communicator_, &request), "MPI_Ibcast");
      break;
    case Collective::kReduce: {
      const bool root = operation.peer == options().rank;
      check(MPI_Ireduce(root ? MPI_IN_PLACE : in, root ? out : nullptr, count, type,
                        mpi::operation_of(operation.dtype, operation.op), operation.peer, communicator_,
                        &request),
            "MPI_Ireduce");
      break;
    }
    case Collective::kAllToAll:
      check(MPI_Ialltoall(in, count, type, out, count, type, communicator_, &request), "MPI_Ialltoall");
      break;
    default:
      MUSTER_CHECK(false, "{} is not for MPI", operation.to_string());
  }
  return request;
}

void MpiEngine::gather(const void* mine, void* all, size_t bytes, Deadline deadline) {
  const auto ranks = static_cast<size_t>(options().size);
  const auto memory = std::make_shared<std::vector<std::byte>>((ranks + 1) * bytes);
  std::byte* const sent = memory->data();
  std::byte* const received = sent + bytes;
  const int count = static_cast<int>(bytes);
  memcpy(sent, mine, bytes);
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallgather(sent, count, MPI_BYTE, received, count, MPI_BYTE, communicator_, &request),
        "MPI_Iallgather");
  wait(request, deadline, {.memory = memory});
  memcpy(all, received, ranks * bytes);
}

void MpiEngine::send(const void* data, size_t bytes, int to, Deadline deadline) {
  for (size_t at = 0; at < bytes; at += kMostElements) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Isend(static_cast<const std::byte*>(data) + at,
                    static_cast<int>(std::min(kMostElements, bytes - at)), MPI_BYTE, to, kMessageTag,
                    communicator_, &request),
          "MPI_Isend");
    wait(request, deadline, {});
  }
}

void MpiEngine::receive(void* data, size_t bytes, int from, Deadline deadline) {
  for (size_t at = 0; at < bytes; at += kMostElements) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Irecv(static_cast<std::byte*>(data) + at, static_cast<int>(std::min(kMostElements, bytes - at)),
                    MPI_BYTE, from, kMessageTag, communicator_, &request),
          "MPI_Irecv");
    wait(request, deadline, {.cancellable = true});
  }
}

void MpiEngine::wait(MPI_Request request, Deadline deadline, const Lent& lent) {
  int done = 0;
  for (uint64_t tests = 1;; ++tests) {
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) return;
    if (group_error().raised() || deadline.expired()) break;
    if (tests % kTestsBetweenLooks == 0) look_at_wait();
    std::this_thread::yield();
  }
  if (lent.cancellable) {
    check(MPI_Cancel(&request), "MPI_Cancel");
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  }
  if (done == 0) mpi::leave_unfinished(lent.memory);
  if (group_error().raised()) throw Interrupted();
  raise<DeadlineExceeded>("the others did not come in time");
}

}  // namespace muster::detail

extern "C" const muster::detail::EngineModule* muster_engine_module() {
  static const muster::detail::EngineModule module = {
      .version = MUSTER_VERSION,
      .make = [](const muster::Communicator::Options& options,
                 muster::detail::GroupState& state) -> std::unique_ptr<muster::detail::Engine> {
        return std::make_unique<muster::detail::MpiEngine>(options, state);
      }};
  return &module;
}
