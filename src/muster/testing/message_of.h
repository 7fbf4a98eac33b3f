#pragma once

// What a call throws, for tests of what is refused.
//
//   EXPECT_THAT(message_of([&] { graph.add("aten::nothing"); }), HasSubstr("no operator"));

#include <string>
#include <utility>

#include "muster/error.h"

namespace muster::detail::testing {

/// The message of the error; "nothing was thrown" where there is none. What is no `Expected` passes through.
template <typename Expected = Error, typename Function>
std::string message_of(Function&& function) {
  try {
    std::forward<Function>(function)();
  } catch (const Expected& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace muster::detail::testing
