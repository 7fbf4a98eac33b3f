#pragma once

// The body of main for a program on Muster:
//
//   int main(int argc, char** argv) {
//     return muster::run(argc, argv, [](muster::Job& job) { ... });
//   }
//
// It reads flags and environment, joins the job, runs `body`, and finishes cleanly. An exception from `body`
// is logged, ends the job for every task with its text as the reason, and makes the exit code 1; a mistake in
// flags or variables makes it 2. With --strategy ps-..., tasks of the job "ps" serve parameters instead.

#include <functional>

#include "muster/train/job.h"

namespace CLI {
class App;
}

namespace muster {

int run(int argc, char** argv, const std::function<void(Job&)>& body);

/// The same for a program with flags of its own, bound to `app` (include <CLI/CLI.hpp>); --help shows both,
/// apart.
int run(CLI::App& app, int argc, char** argv, const std::function<void(Job&)>& body);

}  // namespace muster
