#pragma once

// Writes spans of time in the trace format of Chrome, which chrome://tracing and ui.perfetto.dev draw.
//
//   write_chrome_trace(out, {{.process = "/job:worker/task:0", .name = "relu", .category = "aten::relu",
//                             .start = 10us, .duration = 3us}});
//
// Each process has a line of its own. Names need not be UTF-8. A pure function; what is wrong with the stream
// is in its state afterwards.

#include <chrono>
#include <iosfwd>
#include <string>
#include <vector>

namespace muster::detail {

struct ChromeSpan {
  std::string process;
  std::string name;
  std::string category;
  std::chrono::nanoseconds start{0};
  std::chrono::nanoseconds duration{0};
};

void write_chrome_trace(std::ostream& out, const std::vector<ChromeSpan>& spans);

}  // namespace muster::detail
