#pragma once

// A thread that works for the task that the calling thread works for: its lines of the log name that task,
// too. Several tasks may live in one process.
//
//   thread_ = start_thread([this] { listen(); });
//
// What the body throws ends the process, as with any std::thread.

#include <string>
#include <thread>
#include <utility>

#include "muster/base/log.h"

namespace muster::detail {

template <typename Body>
std::thread start_thread(Body body) {
  return std::thread([body = std::move(body), task = log_task()]() mutable {
    const ScopedLogTask scope(task);
    body();
  });
}

}  // namespace muster::detail
