#include "muster/observe/chrome_trace.h"

#include <map>
#include <ostream>
#include <string_view>

#include <nlohmann/json.hpp>

namespace muster::detail {

namespace {

using Json = nlohmann::ordered_json;

// Times are in microseconds there.
double microseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

}  // namespace

void write_chrome_trace(std::ostream& out, const std::vector<ChromeSpan>& spans) {
  std::string_view separator;
  const auto write = [&](const Json& event) {
    out << separator << event.dump(-1, ' ', false, Json::error_handler_t::replace);
    separator = ",\n";
  };
  out << "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n";
  std::map<std::string_view, int> processes;
  for (const auto& span : spans) {
    const auto [process, is_new] = processes.emplace(span.process, static_cast<int>(processes.size()));
    const int number = process->second;
    if (is_new)
      write({{"ph", "M"}, {"name", "process_name"}, {"pid", number}, {"args", {{"name", span.process}}}});
    write({{"ph", "X"},
           {"name", span.name},
           {"cat", span.category},
           {"pid", number},
           {"tid", 0},
           {"ts", microseconds(span.start)},
           {"dur", microseconds(span.duration)}});
  }
  out << "\n]}\n";
}

}  // namespace muster::detail
