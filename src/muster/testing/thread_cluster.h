#pragma once

// N ranks as threads of this process.
//
//   for (const auto& error : run_ranks(3, 30s, [&](int rank) { ... })) EXPECT_EQ(error, "");

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace muster::testing {

/// Runs `body(rank)` on `ranks` threads and waits for all. Gives what each threw, as text ("" when it
/// returned). When the ranks do not all end in time, it names those that hang and aborts the process: a
/// thread can't be killed.
std::vector<std::string> run_ranks(int ranks, std::chrono::milliseconds limit,
                                   const std::function<void(int)>& body);

}  // namespace muster::testing
