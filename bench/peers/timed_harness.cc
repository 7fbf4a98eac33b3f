#include "bench/peers/timed_harness.h"

#include <chrono>
#include <sstream>
#include <stdexcept>

#include "bench/peers/conversation.h"

namespace muster::detail::bench {
namespace {

/// Microseconds of the pieces of work alone.
double time_of(TimedWork& work, int count) {
  std::chrono::duration<double, std::micro> elapsed{};
  for (int i = 0; i < count; ++i) {
    work.prepare();
    const auto start = std::chrono::steady_clock::now();
    work.run();
    elapsed += std::chrono::steady_clock::now() - start;
  }
  return elapsed.count();
}

std::string answer_of(TimedWork& work, const std::string& command) {
  if (command == "verify") return work.verify() ? "ok 1" : "ok 0";
  std::istringstream words(command);
  std::string verb;
  int warmup = 0;
  int samples = 0;
  int batch = 0;
  words >> verb >> warmup >> samples >> batch;
  if (!words || verb != "run" || batch < 1) throw std::invalid_argument("not a command: " + command);
  time_of(work, warmup);
  std::ostringstream text;
  text << "ok";
  for (int i = 0; i < samples; ++i) text << ' ' << time_of(work, batch) / batch;
  return text.str();
}

}  // namespace

void serve_timed(TimedWork& work, const std::string& directory, int rank) {
  converse(directory, rank, [&](const std::string& command) { return answer_of(work, command); });
}

void serve_idle(const std::string& directory, int rank) {
  converse(directory, rank, [](const std::string&) { return "ok"; });
}

}  // namespace muster::detail::bench
