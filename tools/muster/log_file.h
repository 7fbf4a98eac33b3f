#pragma once

// A file that lines are appended to, and that knows what it could not take: a disk may be full for a while.
//
// One thread at a time uses it. It owns the descriptor. Each line is one write, so that whoever follows the
// file sees it at once.

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace muster::detail {

class LogFile {
 public:
  /// Empties the file. Throws SystemError when it can't be written.
  explicit LogFile(std::filesystem::path path);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  /// Adds a line, without its newline. False when it could not be written whole.
  bool append(std::string_view line);

  const std::filesystem::path& path() const { return path_; }
  size_t lost() const { return lost_; }                    ///< lines that were not written whole
  const std::string& trouble() const { return trouble_; }  ///< the reason for the last of them

 private:
  const std::filesystem::path path_;
  int fd_ = -1;
  size_t lost_ = 0;
  std::string trouble_;
  bool torn_ = false;  // the last line has no end
};

}  // namespace muster::detail
