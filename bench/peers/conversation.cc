#include "bench/peers/conversation.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace muster::detail::bench {
namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

File open_fifo(const std::string& path, int flags, const char* mode) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC);
  if (fd < 0) throw std::runtime_error(path + " can't be opened: " + std::strerror(errno));
  return {fdopen(fd, mode), std::fclose};
}

void say(std::FILE* file, const std::string& line) {
  std::fputs((line + "\n").c_str(), file);
  std::fflush(file);
}

}  // namespace

void converse(const std::string& directory, int rank,
              const std::function<std::string(const std::string& command)>& answer) {
  const std::string prefix = directory + "/" + std::to_string(rank);
  const File in = open_fifo(prefix + ".in", O_RDONLY, "r");
  const File out = open_fifo(prefix + ".out", O_WRONLY, "w");
  say(out.get(), "ready " + std::to_string(getpid()));
  std::array<char, 256> line{};
  while (std::fgets(line.data(), line.size(), in.get()) != nullptr) {
    const std::string command(line.data(), std::strcspn(line.data(), "\n"));
    if (command == "quit") return;
    try {
      say(out.get(), answer(command));
    } catch (const std::exception& error) {
      const std::string what = error.what();
      say(out.get(), "error " + what.substr(0, what.find('\n')));  // torch adds a stack
    }
  }
  _exit(1);
}

}  // namespace muster::detail::bench
