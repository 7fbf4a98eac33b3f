// gloo as a subject, through libtorch's process group, as a training program on libtorch would use it.
//
//   peer_gloo DIR RANK RANKS      once for each rank
//
// The ranks meet in the file DIR/store and talk over the loopback interface: gloo has no shared memory.

#include <cstdio>
#include <cstdlib>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/torch.h>

#include "bench/peers/harness.h"

namespace muster::detail::bench {
namespace {

c10::intrusive_ptr<c10d::ProcessGroupGloo> make_group(const std::string& directory, int rank, int size) {
  auto store = c10::make_intrusive<c10d::FileStore>(directory + "/store", size);
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface("lo"));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
}

class Gloo : public Subject {
 public:
  Gloo(const std::string& directory, int rank, int size) : group_(make_group(directory, rank, size)) {}

  int rank() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }

  Buffers prepare(Collective collective, size_t bytes) override {
    if (collective == Collective::kReduceScatter)
      throw NotOffered("libtorch's process group for gloo has no reduce-scatter");
    collective_ = collective;
    const Shape shape = shape_of(collective, bytes, size());
    in_.clear();
    out_.clear();
    in_.push_back(torch::empty(static_cast<int64_t>(shape.in)));
    out_.push_back(shape.in_place ? in_.front() : torch::empty(static_cast<int64_t>(shape.out)));
    out_blocks_ = {out_.front().chunk(size())};
    return {.in = {in_.front().data_ptr<float>(), shape.in},
            .out = {out_.front().data_ptr<float>(), shape.out}};
  }

  void run() override { start()->wait(); }
  void barrier() override { group_->barrier()->wait(); }

 private:
  c10::intrusive_ptr<c10d::Work> start() {
    switch (collective_) {
      case Collective::kAllReduce:
        return group_->allreduce(in_);
      case Collective::kAllGather:
        return group_->allgather(out_blocks_, in_);
      case Collective::kBroadcast:
        return group_->broadcast(in_);
      case Collective::kReduce:
        return group_->reduce(in_);
      case Collective::kAllToAll:
        return group_->alltoall_base(out_.front(), in_.front(), equal_split_, equal_split_);
      case Collective::kReduceScatter:
      case Collective::kBarrier:
        break;
    }
    return group_->barrier();
  }

  const c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  Collective collective_ = Collective::kBarrier;
  std::vector<torch::Tensor> in_;
  std::vector<torch::Tensor> out_;
  std::vector<std::vector<torch::Tensor>> out_blocks_;  // views of out_, one for each rank
  std::vector<int64_t> equal_split_;
};

}  // namespace
}  // namespace muster::detail::bench

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: peer_gloo DIR RANK RANKS\n", stderr);
    return 2;
  }
  try {
    muster::detail::bench::Gloo subject(argv[1], std::atoi(argv[2]), std::atoi(argv[3]));
    muster::detail::bench::serve(subject, argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "peer_gloo: %s\n", error.what());
    return 1;
  }
}
