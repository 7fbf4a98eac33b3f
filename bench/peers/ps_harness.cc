#include "bench/peers/ps_harness.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "bench/peers/conversation.h"

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

class Conversation {
 public:
  Conversation(PsWorker& worker, const PsTask& task) : worker_(worker), task_(task) {}

  std::string answer(const std::string& command) {
    if (command == "verify") return worker_.verify(steps_) ? "ok 1" : "ok 0";
    std::istringstream words(command);
    std::string verb;
    int warmup = 0;
    int samples = 0;
    int batch = 0;
    words >> verb >> warmup >> samples >> batch;
    if (!words || verb != "run" || batch < 1) throw std::invalid_argument("not a command: " + command);
    take_steps(warmup);
    std::ostringstream text;
    text << "ok";
    for (int i = 0; i < samples; ++i) text << ' ' << take_steps(batch) / batch;
    steps_ += warmup + int64_t{samples} * batch;
    return text.str();
  }

 private:
  /// Microseconds of the steps alone.
  double take_steps(int count) {
    std::chrono::duration<double, std::micro> elapsed{};
    for (int i = 0; i < count; ++i) {
      write_gradients(worker_.gradients(), task_.rank);
      const auto start = std::chrono::steady_clock::now();
      worker_.step();
      elapsed += std::chrono::steady_clock::now() - start;
    }
    return elapsed.count();
  }

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
  Conversation conversation(worker, task);
  converse(task.directory, task.rank,
           [&](const std::string& command) { return conversation.answer(command); });
}

void serve_server(const PsTask& task) {
  converse(task.directory, task.rank, [](const std::string&) { return "ok"; });
}

}  // namespace muster::detail::bench
