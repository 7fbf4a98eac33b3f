// An MPI as a subject: this file is compiled once with Open MPI and once with MPICH.
//
//   mpirun -n RANKS ... peer_openmpi DIR

#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>

#include "bench/peers/harness.h"

namespace muster::detail::bench {
namespace {

constexpr size_t kPage = 4096;

struct Free {
  void operator()(float* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<float, Free>;

// As a program would get memory for a large tensor: on a page of its own.
Memory allocate(size_t count) {
  const size_t bytes = (count * sizeof(float) + kPage) / kPage * kPage;
  auto* memory = static_cast<float*>(std::aligned_alloc(kPage, bytes));
  if (memory == nullptr) throw std::bad_alloc();
  return Memory(memory);
}

class Mpi : public Subject {
 public:
  Mpi() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Buffers prepare(Collective collective, size_t bytes) override {
    collective_ = collective;
    const Shape shape = shape_of(collective, bytes, size_);
    in_.reset();
    out_.reset();
    in_ = allocate(shape.in);
    if (!shape.in_place) out_ = allocate(shape.out);
    // MPI counts elements of the whole, or of one rank's block.
    const bool whole = shape.in_place;
    count_ = static_cast<int>(whole ? shape.in : std::min(shape.in, shape.out));
    if (collective == Collective::kAllToAll) count_ /= size_;
    return {.in = {in_.get(), shape.in}, .out = {whole ? in_.get() : out_.get(), shape.out}};
  }

  void run() override {
    float* in = in_.get();
    float* out = out_.get();
    switch (collective_) {
      case Collective::kAllReduce:
        MPI_Allreduce(MPI_IN_PLACE, in, count_, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
      case Collective::kReduceScatter:
        MPI_Reduce_scatter_block(in, out, count_, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
      case Collective::kAllGather:
        MPI_Allgather(in, count_, MPI_FLOAT, out, count_, MPI_FLOAT, MPI_COMM_WORLD);
        break;
      case Collective::kBroadcast:
        MPI_Bcast(in, count_, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
      case Collective::kReduce:
        MPI_Reduce(rank_ == 0 ? MPI_IN_PLACE : in, in, count_, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
        break;
      case Collective::kAllToAll:
        MPI_Alltoall(in, count_, MPI_FLOAT, out, count_, MPI_FLOAT, MPI_COMM_WORLD);
        break;
      case Collective::kBarrier:
        barrier();
        break;
    }
  }

  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }

 private:
  int rank_ = 0;
  int size_ = 0;
  Collective collective_ = Collective::kBarrier;
  int count_ = 0;
  Memory in_;
  Memory out_;
};

}  // namespace
}  // namespace muster::detail::bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: mpirun -n RANKS %s DIR\n", argv[0]);
    return 2;
  }
  MPI_Init(&argc, &argv);
  try {
    muster::detail::bench::Mpi subject;
    muster::detail::bench::serve(subject, argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
