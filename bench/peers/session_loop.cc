// The operators of `muster bench session` without a session: the same calls of ATen, one after the other.
//
//   peer_session_loop DIR

#include <cstdio>

#include <torch/torch.h>

#include "bench/peers/timed_harness.h"

namespace muster::detail::bench {
namespace {

constexpr int kOperators = 100;

class Loop : public TimedWork {
 public:
  void run() override {
    const torch::NoGradGuard guard;
    torch::Tensor y = input_;
    for (int i = 0; i < kOperators / 2; ++i) y = at::mul(at::add(y, one_), one_);
    result_ = y;
  }

  bool verify() override { return torch::equal(result_, torch::full({4}, 1.0F + kOperators / 2.0F)); }

 private:
  const torch::Tensor input_ = torch::ones({4});
  const torch::Tensor one_ = torch::ones({4});
  torch::Tensor result_;
};

}  // namespace
}  // namespace muster::detail::bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: peer_session_loop DIR\n", stderr);
    return 2;
  }
  try {
    muster::detail::bench::Loop loop;
    muster::detail::bench::serve_timed(loop, argv[1], 0);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "peer_session_loop: %s\n", error.what());
    return 1;
  }
}
