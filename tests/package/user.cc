#include <cstdio>

#include <muster/muster.h>

int main(int argc, char** argv) {
  return muster::run(argc, argv, [](muster::Job& job) {
    torch::nn::Linear net(3, 1);
    muster::Trainer trainer(job, net, muster::optim::SGD({.lr = 0.1}));
    const muster::Step step = trainer.step([&] { return net(torch::ones({4, 3})).pow(2).mean(); }, 4);
    std::printf("user program: %d worker, step %d, %s\n", job.size(), static_cast<int>(trainer.steps()),
                step.loss >= 0 ? "trained" : "failed");
  });
}
