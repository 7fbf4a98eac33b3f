#include "bench/train/memory.h"

#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include <fmt/format.h>

#include "muster/base/text.h"

namespace muster::detail::bench::train {

std::optional<MemoryUse> parse_memory(std::string_view smaps_rollup) {
  std::map<std::string, double> fields;
  for (const auto& line : split(smaps_rollup, '\n')) {
    std::istringstream words(line);
    std::string name;
    double kibibytes = 0;
    if (words >> name >> kibibytes) fields[name] = kibibytes / 1024;
  }
  for (const char* name : {"Rss:", "Pss:", "Pss_Anon:", "Pss_Shmem:"}) {
    if (!fields.contains(name)) return std::nullopt;
  }
  return MemoryUse{
      .rss = fields["Rss:"], .pss = fields["Pss:"], .own = fields["Pss_Anon:"] + fields["Pss_Shmem:"]};
}

std::optional<MemoryUse> memory_of(const std::vector<pid_t>& pids) {
  MemoryUse sum;
  for (const pid_t pid : pids) {
    std::ifstream file(fmt::format("/proc/{}/smaps_rollup", pid));
    std::ostringstream text;
    text << file.rdbuf();
    const auto use = parse_memory(text.str());
    if (!use) return std::nullopt;
    sum.rss += use->rss;
    sum.pss += use->pss;
    sum.own += use->own;
  }
  const auto count = static_cast<double>(pids.size());
  return MemoryUse{.rss = sum.rss / count, .pss = sum.pss / count, .own = sum.own / count};
}

}  // namespace muster::detail::bench::train
