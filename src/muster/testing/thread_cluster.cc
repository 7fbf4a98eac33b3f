#include "muster/testing/thread_cluster.h"

#include <thread>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/mutex.h"
#include "muster/deadline.h"

namespace muster::detail::testing {

std::vector<std::string> ThreadCluster::run(const std::function<void(int)>& body) const {
  Mutex mutex;
  ConditionVariable changed;
  std::vector<bool> ended(static_cast<size_t>(ranks_));
  std::vector<std::string> errors(static_cast<size_t>(ranks_));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks_; ++rank) {
    threads.emplace_back([&, rank] {
      const ScopedLogTask task(fmt::format("rank/{}", rank));
      std::string error;
      try {
        body(rank);
      } catch (const std::exception& thrown) {
        error = thrown.what();
        if (error.empty()) error = "an exception without a message";
      }
      const MutexLock lock(mutex);
      errors[static_cast<size_t>(rank)] = error;
      ended[static_cast<size_t>(rank)] = true;
      changed.notify_all();
    });
  }
  {
    MutexLock lock(mutex);
    const auto deadline = Deadline::after(limit_);
    while (std::find(ended.begin(), ended.end(), false) != ended.end()) {
      if (deadline.expired()) {
        std::string hanging;
        for (int rank = 0; rank < ranks_; ++rank) {
          if (!ended[static_cast<size_t>(rank)]) hanging += fmt::format(" {}", rank);
        }
        MUSTER_CHECK(false, "ranks{} did not end within {}", hanging, format_seconds(limit_));
      }
      changed.wait_until(lock, deadline.time_point());
    }
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

}  // namespace muster::detail::testing
