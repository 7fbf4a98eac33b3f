#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace muster::detail {

/// Holds programs until a test lets them go on: each waits by reading a line from the file at path().
class Gate {
 public:
  Gate() {
    EXPECT_EQ(mkfifo(path().c_str(), 0600), 0);
    // For both: opening one end alone would wait for the other.
    pipe_ = ::open(path().c_str(), O_RDWR | O_CLOEXEC);
  }
  ~Gate() {
    ::close(pipe_);
    std::filesystem::remove(path());
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  std::string path() const {
    return std::filesystem::temp_directory_path() / fmt::format("muster-gate-{}", getpid());
  }
  /// Lets one program go on.
  void open() const { EXPECT_EQ(write(pipe_, "\n", 1), 1); }

 private:
  int pipe_ = -1;
};

}  // namespace muster::detail
