// One rank of Muster for `muster bench`: muster_bench_rank DIR --memory arena|heap, under `muster run`.

#include <cstdio>

#include <CLI/CLI.hpp>

#include "bench/peers/harness.h"
#include "muster/communicator.h"
#include "muster/run.h"

namespace {

using muster::DType;
using muster::ReduceOp;
using muster::detail::bench::Buffers;
using muster::detail::bench::Collective;

class MusterSubject : public muster::detail::bench::Subject {
 public:
  MusterSubject(muster::Communicator& comm, bool arena) : comm_(comm), arena_(arena) {}

  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  void barrier() override { comm_.barrier(); }

  Buffers prepare(Collective collective, size_t bytes) override {
    collective_ = collective;
    const auto shape = muster::detail::bench::shape_of(collective, bytes, size());
    in_ = {};
    out_ = {};
    in_ = allocate(shape.in);
    if (!shape.in_place) out_ = allocate(shape.out);
    buffers_.in = {static_cast<float*>(in_.get()), shape.in};
    buffers_.out = shape.in_place ? buffers_.in : std::span(static_cast<float*>(out_.get()), shape.out);
    return buffers_;
  }

  void run() override {
    float* const in = buffers_.in.data();
    float* const out = buffers_.out.data();
    switch (collective_) {
      case Collective::kAllReduce:
        return comm_.all_reduce(in, buffers_.in.size(), DType::kFloat32);
      case Collective::kReduceScatter:
        return comm_.reduce_scatter(in, out, buffers_.out.size(), DType::kFloat32);
      case Collective::kAllGather:
        return comm_.all_gather(in, out, buffers_.in.size(), DType::kFloat32);
      case Collective::kBroadcast:
        return comm_.broadcast(in, buffers_.in.size(), DType::kFloat32, 0);
      case Collective::kReduce:
        return comm_.reduce(in, buffers_.in.size(), DType::kFloat32, ReduceOp::kSum, 0);
      case Collective::kAllToAll:
        return comm_.all_to_all(in, out, buffers_.in.size() / static_cast<size_t>(size()), DType::kFloat32);
      case Collective::kBarrier:
        return comm_.barrier();
    }
  }

 private:
  std::shared_ptr<void> allocate(size_t elements) {
    const size_t bytes = std::max<size_t>(elements, 1) * sizeof(float);
    if (arena_) return comm_.allocate(bytes);
    return {std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), [](void* data) { std::free(data); }};
  }

  muster::Communicator& comm_;
  const bool arena_;
  Collective collective_ = Collective::kBarrier;
  std::shared_ptr<void> in_;
  std::shared_ptr<void> out_;
  Buffers buffers_;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("One rank of Muster for `muster bench`.");
  std::string directory;
  std::string memory = "arena";
  app.add_option("directory", directory, "where the driver's FIFOs are")->required();
  app.add_option("--memory", memory, "of the buffers: arena or heap")
      ->check(CLI::IsMember({"arena", "heap"}));
  return muster::run(app, argc, argv, [&](muster::Job& job) {
    MusterSubject subject(job.communicator(), memory == "arena");
    muster::detail::bench::serve(subject, directory);
  });
}
