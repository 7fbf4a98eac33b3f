#pragma once

// The body of main for a program on Muster:
//
//   int main(int argc, char** argv) {
//     return muster::run(argc, argv, [](muster::Job& job) {
//       std::printf("hello from worker %d of %d\n", job.rank(), job.size());
//     });
//   }
//
// It reads flags and environment, enters the job, runs `body` on this thread, and finishes cleanly. An
// exception from `body` is logged, ends the job for every task with its text as the reason, and makes the
// exit code 1; a mistake in flags or variables makes it 2, and so does a flag of the program's with the name
// of one of Muster's. With --strategy ps-..., tasks of the job "ps" serve parameters instead. It throws
// nothing, and is called once, before the program makes threads; a second call says so, and gives 2. While
// it runs, SIGQUIT prints the stacks of all threads, unless it was ignored or had a handler before.

#include <functional>

#include "muster/job.h"

namespace CLI {
class App;
}

namespace muster {

int run(int argc, char** argv, const std::function<void(Job&)>& body);

/// The same for a program with flags of its own, bound to `app` (include <CLI/CLI.hpp>); --help shows both,
/// apart.
int run(CLI::App& app, int argc, char** argv, const std::function<void(Job&)>& body);

}  // namespace muster
