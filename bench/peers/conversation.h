#pragma once

// How a rank of a subject talks with the driver of `muster bench`: through two FIFOs in a folder,
// DIR/<rank>.in and DIR/<rank>.out, one line each way.
//
//   rank    ready <its process id>
//   driver  <a command: harness.h, train_harness.h and timed_harness.h have them>
//   rank    <the answer>, or error <what went wrong>
//   driver  quit
//
// Between two commands a rank is blocked in read(), so that it takes nothing from the subject that is being
// measured. Needs nothing but the standard library: programs on any MPI can use it. One thread.

#include <functional>
#include <string>

namespace muster::detail::bench {

/// Gives each command to `answer` until the driver says quit; the first line of what `answer` throws is the
/// answer "error". Ends the process when the driver is gone: a subject's farewell may wait for ranks that are
/// gone too. Throws std::runtime_error when there are no FIFOs.
void converse(const std::string& directory, int rank,
              const std::function<std::string(const std::string& command)>& answer);

}  // namespace muster::detail::bench
