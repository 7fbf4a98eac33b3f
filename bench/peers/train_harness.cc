#include "bench/peers/train_harness.h"

#include <chrono>
#include <sstream>
#include <stdexcept>

#include "bench/peers/conversation.h"

namespace muster::detail::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

std::string answer(TrainWorker& worker, Seconds elapsed) {
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

std::string train(TrainWorker& worker, int warmup, int steps) {
  for (int i = 0; i < warmup; ++i) worker.step();
  worker.begin_turn();
  const auto start = Clock::now();
  for (int i = 0; i < steps; ++i) worker.step();
  return answer(worker, Clock::now() - start);
}

std::string train_for(TrainWorker& worker, Seconds time) {
  worker.begin_turn();
  const auto start = Clock::now();
  do worker.step();
  while (Clock::now() - start < time);
  const int64_t used = worker.rest();
  return answer(worker, Clock::now() - start) + " steps " + std::to_string(used);
}

std::string take_turn(TrainWorker& worker, const std::string& command) {
  std::istringstream words(command);
  std::string verb;
  int warmup = 0;
  int steps = 0;
  double seconds = 0;
  words >> verb;
  if (verb == "train" && words >> warmup >> steps && steps > 0) return train(worker, warmup, steps);
  if (verb == "train-for" && words >> seconds) return train_for(worker, Seconds(seconds));
  throw std::invalid_argument("not a command: " + command);
}

}  // namespace

void serve_training(TrainWorker& worker, const std::string& directory, int rank) {
  converse(directory, rank, [&](const std::string& command) { return take_turn(worker, command); });
}

}  // namespace muster::detail::bench
