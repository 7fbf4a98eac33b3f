#include "muster/collective/mpi/mpi_library.h"

#include <stdlib.h>

#include <algorithm>
#include <array>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/mutex.h"
#include "muster/collective/kernels.h"

namespace muster::detail::mpi {
namespace {

constexpr std::array kReductions = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

// MPI's own state is one for the process, and so is this.
struct Library {
  Mutex mutex;
  bool started MUSTER_GUARDED_BY(mutex) = false;
  bool unfinished MUSTER_GUARDED_BY(mutex) = false;
  std::vector<std::shared_ptr<void>> left MUSTER_GUARDED_BY(mutex);

  // Made by start(), and constant from then on.
  MPI_Datatype half = MPI_DATATYPE_NULL;  // two bytes
  std::array<MPI_Op, kReductions.size()> float16 = {};
  std::array<MPI_Op, kReductions.size()> bfloat16 = {};
  // Of these the minimum and the maximum are used: MPI's own lose what is no number.
  std::array<MPI_Op, kReductions.size()> float32 = {};
  std::array<MPI_Op, kReductions.size()> float64 = {};
};

// Never destroyed: MPI may still write to what was left to it.
Library& library() {
  static auto* const library = new Library;
  return *library;
}

template <DType kType, size_t kReduction>
void reduce(void* in, void* inout, int* length, MPI_Datatype*) {
  const std::array<const void*, 2> sources = {in, inout};
  const std::array<void*, 1> destinations = {inout};
  kernels().reduce({.dtype = kType, .op = kReductions[kReduction]}, sources, destinations,
                   static_cast<size_t>(*length));
}

template <DType kType, size_t... kReduction>
void make_operations(std::array<MPI_Op, kReductions.size()>& operations, std::index_sequence<kReduction...>) {
  constexpr int kCommutes = 1;
  (check(MPI_Op_create(reduce<kType, kReduction>, kCommutes, &operations[kReduction]), "MPI_Op_create"), ...);
}

size_t index_of(ReduceOp op) {
  const auto found = std::find(kReductions.begin(), kReductions.end(), op);
  return found == kReductions.end() ? 0
                                    : static_cast<size_t>(found - kReductions.begin());  // an average sums
}

void finalise(int exit_code, void*) {
  int finalised = 0;
  MPI_Finalized(&finalised);
  if (exit_code != 0 || finalised != 0 || unfinished()) return;
  Library& mpi = library();
  for (auto* operations : {&mpi.float16, &mpi.bfloat16, &mpi.float32, &mpi.float64}) {
    for (MPI_Op& operation : *operations) MPI_Op_free(&operation);
  }
  MPI_Type_free(&mpi.half);
  MPI_Finalize();
}

}  // namespace

void start() {
  Library& mpi = library();
  const MutexLock lock(mpi.mutex);
  int finalised = 0;
  check(MPI_Finalized(&finalised), "MPI_Finalized");
  if (finalised != 0) raise<InvalidArgument>("this program has finalised MPI: the engine 'mpi' needs it");
  if (mpi.started) return;
  int initialised = 0;
  int threads = MPI_THREAD_SINGLE;
  check(MPI_Initialized(&initialised), "MPI_Initialized");
  if (initialised == 0) {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &threads), "MPI_Init_thread");
    on_exit(finalise, nullptr);
  } else {
    check(MPI_Query_thread(&threads), "MPI_Query_thread");
  }
  if (threads < MPI_THREAD_MULTIPLE) {
    raise<InvalidArgument>("{} was initialised for one thread at a time: the engine 'mpi' needs {}",
                           library_name(), "MPI_Init_thread with MPI_THREAD_MULTIPLE");
  }
  check(MPI_Type_contiguous(2, MPI_BYTE, &mpi.half), "MPI_Type_contiguous");
  check(MPI_Type_commit(&mpi.half), "MPI_Type_commit");
  const auto all = std::make_index_sequence<kReductions.size()>();
  make_operations<DType::kFloat16>(mpi.float16, all);
  make_operations<DType::kBFloat16>(mpi.bfloat16, all);
  make_operations<DType::kFloat32>(mpi.float32, all);
  make_operations<DType::kFloat64>(mpi.float64, all);
  mpi.started = true;
}

void leave_unfinished(std::shared_ptr<void> memory) {
  const MutexLock lock(library().mutex);
  library().unfinished = true;
  library().left.push_back(std::move(memory));
}

bool unfinished() {
  const MutexLock lock(library().mutex);
  return library().unfinished;
}

void check(int code, const char* function) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text = {};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  raise<PeerLost>("{} failed: {}", function, text.data());
}

MPI_Datatype type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return MPI_FLOAT;
    case DType::kFloat64:
      return MPI_DOUBLE;
    case DType::kFloat16:
    case DType::kBFloat16:
      return library().half;
    case DType::kInt8:
      return MPI_INT8_T;
    case DType::kInt32:
      return MPI_INT32_T;
    case DType::kInt64:
      return MPI_INT64_T;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op operation_of(DType dtype, ReduceOp op) {
  const std::array<MPI_Op, kReductions.size()> own = {MPI_SUM, MPI_MIN, MPI_MAX, MPI_PROD};
  const bool chooses = op == ReduceOp::kMin || op == ReduceOp::kMax;
  const auto& operations = dtype == DType::kFloat16              ? library().float16
                           : dtype == DType::kBFloat16           ? library().bfloat16
                           : chooses && dtype == DType::kFloat32 ? library().float32
                           : chooses && dtype == DType::kFloat64 ? library().float64
                                                                 : own;
  return operations[index_of(op)];
}

std::string library_name() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text = {};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  std::string name = text.data();
  name.resize(std::min(name.find_first_of(",\n"), name.size()));
  std::erase(name, ':');
  std::replace(name.begin(), name.end(), '\t', ' ');
  return name;
}

}  // namespace muster::detail::mpi
