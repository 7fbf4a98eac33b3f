#include "muster/net/host.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>

#include <fmt/format.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

std::string namespace_identity(const char* path) {
  struct stat info {};
  if (stat(path, &info) != 0) raise<SystemError>("{} can't be read: {}", path, describe_errno(errno));
  return fmt::format("{}:{}", info.st_dev, info.st_ino);
}

}  // namespace

Host Host::local() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) name = {"localhost"};
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  if (boot_id.empty())
    raise<SystemError>("/proc/sys/kernel/random/boot_id can't be read: {}", describe_errno(errno));
  return {name.data(), fmt::format("{}/net {}/ipc {}", boot_id, namespace_identity("/proc/self/ns/net"),
                                   namespace_identity("/proc/self/ns/ipc"))};
}

}  // namespace muster::detail
