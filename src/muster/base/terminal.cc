#include "muster/base/terminal.h"

#include <sys/ioctl.h>

namespace muster::detail {

int terminal_columns(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace muster::detail
