#include "peers/train_harness.h"

#include <chrono>
#include <sstream>
#include <stdexcept>

#include "peers/conversation.h"

namespace muster::bench {
namespace {

std::string take_turn(TrainWorker& worker, const std::string& command) {
  std::istringstream words(command);
  std::string verb;
  int warmup = 0;
  int steps = 0;
  words >> verb >> warmup >> steps;
  if (!words || verb != "train" || steps < 1) throw std::invalid_argument("not a command: " + command);
  for (int i = 0; i < warmup; ++i) worker.step();
  worker.begin_turn();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) worker.step();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const TrainTurn turn = worker.end_turn();

  std::ostringstream text;
  text << "ok " << elapsed.count() << ' ' << turn.loss;
  const auto add = [&](const char* name, std::optional<double> seconds) {
    if (seconds) text << ' ' << name << ' ' << *seconds;
  };
  add("compute", turn.compute);
  add("wait", turn.wait);
  add("update", turn.update);
  return text.str();
}

}  // namespace

void serve_training(TrainWorker& worker, const std::string& directory, int rank) {
  converse(directory, rank, [&](const std::string& command) { return take_turn(worker, command); });
}

}  // namespace muster::bench
