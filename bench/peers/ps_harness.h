#pragma once

// What the programs that `muster bench ps` measures have in common. A subject is a program that runs as
// several ranks: the workers first, then the servers. A worker makes a PsWorker and calls serve_worker(), a
// server does its work and calls serve_server(); both answer the driver as timed_harness.h says. Workers do
// not wait for each other. Before each step the worker rewrites its gradients, as a backward pass does, which
// is not timed.
//
// Variables are float32, one after the other in one flat buffer. Parameters and gradients are small whole
// numbers that differ from element to element, and gradients from worker to worker, so that sums are exact.
// The driver's questions keep the workers together: when it asks to verify, all have done the same steps.
// peers/ps_torch_rpc.py says the same in Python.
//
// Needs nothing but the standard library. One thread.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace muster::detail::bench {

/// What a rank is told on its command line.
struct PsTask {
  std::string directory;
  int rank = 0;  ///< from `workers` on it is a server
  int workers = 1;
  int servers = 1;
  size_t variables = 1;
  size_t bytes = 0;  ///< of one variable

  bool is_server() const { return rank >= workers; }
  int server() const { return rank - workers; }
  size_t count() const { return variables * bytes / sizeof(float); }  ///< elements of all variables
};

/// From the arguments DIR RANK WORKERS SERVERS VARIABLES BYTES. Throws std::invalid_argument.
PsTask parse_ps_task(std::span<char* const> arguments);

/// One of `parts` consecutive parts of a buffer: what one of several servers holds. With several variables
/// each is whole on one server if the servers divide their number.
std::span<float> part_of(std::span<float> buffer, int part, int parts);

/// What the parameters are before the first step.
void write_start(std::span<float> parameters);

void write_gradients(std::span<float> gradients, int worker);

/// Whether these are the parameters after all workers have pushed their gradients `steps` times, and a server
/// has subtracted them.
bool are_updated(std::span<const float> parameters, int workers, int64_t steps);

/// One worker of a subject. Any function may throw; the text reaches the user.
class PsWorker {
 public:
  virtual ~PsWorker() = default;

  /// Where it has them; the same place for ever. serve_worker() writes them.
  virtual std::span<float> gradients() = 0;

  /// Pushes the gradients of all variables, and pulls their parameters.
  virtual void step() = 0;

  /// Whether what is pulled now, after so many steps of each worker, is right.
  virtual bool verify(int64_t steps) = 0;
};

/// Answers the driver until it says quit.
void serve_worker(PsWorker& worker, const PsTask& task);
void serve_server(const PsTask& task);

}  // namespace muster::detail::bench
