#pragma once

// N ranks as threads of this process.
//
//   const auto errors = ThreadCluster(3, 30s).run([&](int rank) { ... });
//   EXPECT_THAT(errors, Each(""));

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace muster::detail::testing {

class ThreadCluster {
 public:
  /// All ranks must end within `limit`.
  ThreadCluster(int ranks, std::chrono::milliseconds limit) : ranks_(ranks), limit_(limit) {}

  /// Runs `body(rank)` on a thread for each rank and waits for all. Gives what each threw, as text ("" when
  /// it returned). When they do not all end in time, it names those that hang and aborts the process: a
  /// thread can't be killed.
  std::vector<std::string> run(const std::function<void(int)>& body) const;

 private:
  const int ranks_;
  const std::chrono::milliseconds limit_;
};

}  // namespace muster::detail::testing
