// The floor of `muster bench ps`: what a push and a pull cost when nothing but the memory is in the way.
//
//   peer_ps_floor DIR 0 1 0 VARIABLES BYTES
//
// One process on one core: a pass that reads the gradients and updates the parameters by SGD, and a copy of
// the parameters.

#include <cstdio>
#include <cstring>
#include <vector>

#include "bench/peers/ps_harness.h"

namespace muster::detail::bench {
namespace {

class Floor : public PsWorker {
 public:
  explicit Floor(size_t count) : gradients_(count), parameters_(count), pulled_(count) {
    write_start(parameters_);
  }

  std::span<float> gradients() override { return gradients_; }

  void step() override {
    const float* __restrict gradient = gradients_.data();
    float* __restrict parameter = parameters_.data();
    for (size_t i = 0; i < parameters_.size(); ++i) parameter[i] -= rate_ * gradient[i];
    std::memcpy(pulled_.data(), parameters_.data(), pulled_.size() * sizeof(float));
  }

  bool verify(int64_t steps) override { return are_updated(pulled_, 1, steps); }

 private:
  std::vector<float> gradients_;
  std::vector<float> parameters_;
  std::vector<float> pulled_;
  float rate_ = 1;
};

}  // namespace
}  // namespace muster::detail::bench

int main(int argc, char** argv) {
  try {
    const auto task = muster::detail::bench::parse_ps_task({argv + 1, argv + argc});
    muster::detail::bench::Floor floor(task.count());
    muster::detail::bench::serve_worker(floor, task);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "peer_ps_floor DIR RANK WORKERS SERVERS VARIABLES BYTES: %s\n", error.what());
    return 1;
  }
}
