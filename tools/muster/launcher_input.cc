#include "muster/launcher_input.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <optional>
#include <thread>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/text.h"
#include "muster/launcher_signals.h"

namespace muster::detail {
namespace {

// False at the end of the input. Byte by byte: what follows the line is another's to read.
bool read_line(std::string& line) {
  line.clear();
  char c = 0;
  while (true) {
    const ssize_t size = read(STDIN_FILENO, &c, 1);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return false;
    if (c == '\n') return true;
    line += c;
  }
}

std::optional<int> digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return std::nullopt;
}

std::optional<std::string> from_hexadecimal(std::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 2) {
    const auto high = digit(text[i]);
    const auto low = digit(text[i + 1]);
    if (!high || !low) return std::nullopt;
    bytes += static_cast<char>(*high * 16 + *low);
  }
  return bytes;
}

}  // namespace

std::string input_of_variables(const Environment& variables) {
  std::string line;
  for (const auto& assignment : variables.assignments()) {
    const size_t equals = assignment.find('=');
    line += line.empty() ? "" : " ";
    line += assignment.substr(0, equals + 1);
    for (const char c : assignment.substr(equals + 1)) line += fmt::format("{:02x}", static_cast<uint8_t>(c));
  }
  return line + "\n";
}

std::string input_of_signal(int number) {
  return fmt::format("{}\n", sigabbrev_np(number));
}

void read_variables(Environment& environment) {
  std::string line;
  if (!read_line(line))
    raise<InvalidArgument>(
        "--controlled: expected variables on standard input, from the launcher that "
        "started this one; --hosts uses this flag, and nobody else");
  for (const auto& word : split(line, ' ')) {
    const size_t equals = word.find('=');
    const auto value = equals == std::string::npos ? std::nullopt : from_hexadecimal(word.substr(equals + 1));
    if (!value) raise<InvalidArgument>("--controlled: the first line of standard input is malformed");
    environment.set(word.substr(0, equals), *value);
  }
  (void)!write(STDOUT_FILENO, kLauncherReady.data(), kLauncherReady.size());
}

void obey_input() {
  std::thread([] {
    std::string line;
    while (read_line(line)) {
      for (const int number : LauncherSignals::kNumbers) {
        if (line == sigabbrev_np(number)) kill(getpid(), number);
      }
    }
    kill(getpid(), SIGTERM);
  }).detach();
}

}  // namespace muster::detail
