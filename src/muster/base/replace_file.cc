#include "muster/base/replace_file.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "muster/base/error.h"

namespace muster::detail {

namespace {

[[noreturn]] void raise_errno(const char* what, const std::string& file) {
  raise<SystemError>("{} '{}': {}", what, file, describe_errno(errno));
}

}  // namespace

void replace_file(const std::string& file, const std::function<void(std::ostream&)>& write) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    raise<SystemError>("can't write '{}': it is there, and no file", file);
  const std::string temporary = file + ".new";
  {
    std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
    if (!stream) raise_errno("can't write", temporary);
    write(stream);
    stream.close();
    if (!stream) {
      static_cast<void>(std::remove(temporary.c_str()));
      raise_errno("can't write", temporary);
    }
  }
  if (std::rename(temporary.c_str(), file.c_str()) != 0) raise_errno("can't replace", file);
}

}  // namespace muster::detail
