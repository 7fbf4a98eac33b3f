#include "muster/log_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "muster/base/error.h"

namespace muster::detail {

LogFile::LogFile(std::filesystem::path path)
    : path_(std::move(path)),
      // O_NONBLOCK: opening a pipe that nobody reads would wait, deaf to signals.
      fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666)) {
  if (fd_ < 0 && errno == ENXIO)
    raise<SystemError>("the log file {} is a pipe that nobody reads: start its reader first", path_.string());
  if (fd_ < 0)
    raise<SystemError>("the log file {} can't be written: {}", path_.string(), describe_errno(errno));
  ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) & ~O_NONBLOCK);
}

LogFile::~LogFile() {
  ::close(fd_);
}

bool LogFile::append(std::string_view line) {
  const std::string text = fmt::format("{}{}\n", torn_ ? "\n" : "", line);
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t size = ::write(fd_, rest.data(), rest.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) {
      trouble_ = describe_errno(errno);
      ++lost_;
      torn_ = torn_ || rest.size() < text.size();
      return false;
    }
    rest.remove_prefix(static_cast<size_t>(size));
  }
  torn_ = false;
  return true;
}

}  // namespace muster::detail
