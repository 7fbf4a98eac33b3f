#include "muster/base/log_limit.h"

#include <utility>

#include <fmt/format.h>

namespace muster::detail {

bool LogLimit::allows(Time now) {
  if (now - begin_ >= interval_) {
    begin_ = now;
    written_ = 0;
  }
  if (written_ < lines_) {
    ++written_;
    return true;
  }
  ++left_out_;
  return false;
}

std::string LogLimit::left_out() {
  const long count = std::exchange(left_out_, 0);
  return count == 0 ? "" : fmt::format(" ({} more like it were not logged)", count);
}

}  // namespace muster::detail
