#pragma once

// Random values that nobody can guess, from the operating system's generator: for nonces, secrets and names
// that must be unlike any other. Any thread may call these; they throw SystemError when the system gives
// nothing.

#include <cstddef>
#include <cstdint>
#include <string>

namespace muster::detail {

std::string random_bytes(size_t bytes);
uint64_t random_number();
std::string random_token();  ///< 16 bytes as hexadecimal text

}  // namespace muster::detail
