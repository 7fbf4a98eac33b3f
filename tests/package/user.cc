#include <cstdio>

#include <ATen/ATen.h>

#include "muster/base/dtype.h"
#include "muster/data/mnist.h"
#include "muster/train/run.h"

int main(int argc, char** argv) {
  return muster::run(argc, argv, [](muster::Job& job) {
    std::printf("user program: %d worker, %s, sum %g\n", job.workers(),
                muster::name_of(muster::DType::kBFloat16), at::ones({3}).sum().item<double>());
  });
}
