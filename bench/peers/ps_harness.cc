#include "bench/peers/ps_harness.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

#include "bench/peers/timed_harness.h"

namespace muster::detail::bench {
namespace {

// Both are prime, so that parts of any usual size are out of step.
constexpr size_t kStartPeriod = 509;
constexpr size_t kGradientPeriod = 3;

float start_of(size_t index) {
  return static_cast<float>(index % kStartPeriod);
}

float gradient_of(size_t index, int worker) {
  return static_cast<float>((index + static_cast<size_t>(worker)) % kGradientPeriod);
}

class PushesAndPulls : public TimedWork {
 public:
  PushesAndPulls(PsWorker& worker, const PsTask& task) : worker_(worker), task_(task) {}

  void prepare() override { write_gradients(worker_.gradients(), task_.rank); }

  void run() override {
    worker_.step();
    ++steps_;
  }

  bool verify() override { return worker_.verify(steps_); }

 private:
  PsWorker& worker_;
  const PsTask& task_;
  int64_t steps_ = 0;
};

}  // namespace

PsTask parse_ps_task(std::span<char* const> arguments) {
  if (arguments.size() != 6) throw std::invalid_argument("six arguments say what to do");
  return {.directory = arguments[0],
          .rank = std::stoi(arguments[1]),
          .workers = std::stoi(arguments[2]),
          .servers = std::stoi(arguments[3]),
          .variables = std::stoul(arguments[4]),
          .bytes = std::stoul(arguments[5])};
}

std::span<float> part_of(std::span<float> buffer, int part, int parts) {
  const auto begin_of = [&](int which) {
    return buffer.size() * static_cast<size_t>(which) / static_cast<size_t>(parts);
  };
  return buffer.subspan(begin_of(part), begin_of(part + 1) - begin_of(part));
}

void write_start(std::span<float> parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i] = start_of(i);
}

// Copies of some periods, which stay in the first-level cache, by ordinary stores: as a kernel writes them.
void write_gradients(std::span<float> gradients, int worker) {
  std::array<float, kGradientPeriod * 256> periods{};
  for (size_t i = 0; i < periods.size(); ++i) periods[i] = gradient_of(i, worker);
  for (size_t begin = 0; begin < gradients.size(); begin += periods.size()) {
    const size_t count = std::min(periods.size(), gradients.size() - begin);
    std::memcpy(gradients.data() + begin, periods.data(), count * sizeof(float));
  }
}

bool are_updated(std::span<const float> parameters, int workers, int64_t steps) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    float sum = 0;
    for (int worker = 0; worker < workers; ++worker) sum += gradient_of(i, worker);
    if (parameters[i] != start_of(i) - sum * static_cast<float>(steps)) return false;
  }
  return true;
}

void serve_worker(PsWorker& worker, const PsTask& task) {
  PushesAndPulls work(worker, task);
  serve_timed(work, task.directory, task.rank);
}

void serve_server(const PsTask& task) {
  serve_idle(task.directory, task.rank);
}

}  // namespace muster::detail::bench
