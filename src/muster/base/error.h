#pragma once

// How Muster throws its exceptions (muster/error.h), and what it does when it is wrong itself.

#include <exception>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "muster/error.h"

namespace muster::detail {

/// Throws `E` with a formatted message: raise<InvalidArgument>("port {} is not a port", port).
template <typename E, typename... Args>
[[noreturn]] void raise(fmt::format_string<Args...> format, Args&&... args) {
  throw E(fmt::format(format, std::forward<Args>(args)...));
}

/// "No such file or directory (ENOENT)" for an errno.
std::string describe_errno(int error);

/// What an exception says, without the stack that libtorch appends to its own: what c10::Error calls
/// what_without_backtrace(), for rooms and programs that do not know libtorch. Of one that says nothing, its
/// type.
std::string text_without_stack(const std::exception& error);

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace muster::detail

/// An invariant of our own. When it does not hold, the program is wrong: it says where, and aborts.
#define MUSTER_CHECK(condition, ...)                                                                 \
  do {                                                                                               \
    if (!(condition)) [[unlikely]] {                                                                 \
      ::muster::detail::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
    }                                                                                                \
  } while (false)
