#include "muster/base/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "muster/base/error.h"

namespace muster::detail {

std::string random_bytes(size_t bytes) {
  std::string result(bytes, '\0');
  for (size_t filled = 0; filled < bytes;) {
    const ssize_t got = getrandom(result.data() + filled, bytes - filled, 0);
    if (got > 0) filled += static_cast<size_t>(got);
    if (got < 0 && errno != EINTR)
      raise<SystemError>("the operating system gave no random bytes: {}", describe_errno(errno));
  }
  return result;
}

uint64_t random_number() {
  uint64_t number = 0;
  std::memcpy(&number, random_bytes(sizeof(number)).data(), sizeof(number));
  return number;
}

std::string random_token() {
  std::string token;
  for (const char byte : random_bytes(16)) token += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return token;
}

}  // namespace muster::detail
