#include "muster/base/error.h"

#include <cstdlib>
#include <cstring>
#include <typeinfo>

#include "muster/base/log.h"

namespace muster::detail {

std::string describe_errno(int error) {
  const char* name = strerrorname_np(error);
  return fmt::format("{} ({})", strerrordesc_np(error), name != nullptr ? name : std::to_string(error));
}

std::string text_without_stack(const std::exception& error) {
  std::string text = error.what();
  const size_t raised = text.find("\nException raised from ");
  if (raised != std::string::npos && text.find("(most recent call first)", raised) != std::string::npos)
    text.resize(raised);
  // Some have the frames alone.
  if (const size_t frames = text.find("\nframe #0: "); frames != std::string::npos)
    text.resize(text.find_last_not_of('\n', frames) + 1);
  return text.empty() ? fmt::format("an exception without a text, of type {}", typeid(error).name()) : text;
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  log_error("{}:{}: check failed: {} {}", file, line, condition, message);
  flush_log();
  std::abort();
}

}  // namespace muster::detail
