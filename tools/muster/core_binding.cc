#include "muster/core_binding.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "muster/base/text.h"

namespace muster::detail {
namespace {

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int number_in(const std::filesystem::path& path) {
  return static_cast<int>(parse_integer(first_line(path)).value_or(0));
}

// A kernel without NUMA has one node, 0.
std::map<int, int> numa_nodes_of_cores() {
  std::map<int, int> nodes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/devices/system/node", error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("node")) continue;
    const auto node = parse_integer(std::string_view(name).substr(4));
    if (!node) continue;
    for (const int core : parse_cores(first_line(entry.path() / "cpulist")))
      nodes[core] = static_cast<int>(*node);
  }
  return nodes;
}

// The n-th of `parts` nearly equal ranges of `count` things; one of them when there are more parts.
std::pair<size_t, size_t> share(size_t count, size_t parts, size_t n) {
  const size_t first = n * count / parts;
  return {first, std::max(first + 1, (n + 1) * count / parts)};
}

}  // namespace

std::vector<Core> list_cores() {
  std::vector<Core> cores;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return cores;
  const auto numa_nodes = numa_nodes_of_cores();
  for (int number = 0; number < CPU_SETSIZE; ++number) {
    if (!CPU_ISSET(number, &allowed)) continue;
    const std::filesystem::path topology = fmt::format("/sys/devices/system/cpu/cpu{}/topology", number);
    const auto node = numa_nodes.find(number);
    cores.push_back({.number = number,
                     .numa_node = node == numa_nodes.end() ? 0 : node->second,
                     .package = number_in(topology / "physical_package_id"),
                     .physical = number_in(topology / "core_id")});
  }
  return cores;
}

std::vector<std::vector<int>> bind_to_cores(CoreBinding binding, std::vector<Core> cores, int tasks) {
  const auto count = static_cast<size_t>(tasks);
  std::vector<std::vector<int>> result(count);
  if (binding == CoreBinding::kNone || cores.empty()) return result;
  // Neighbours in this order are near each other in the machine.
  std::ranges::sort(cores, {}, [](const Core& core) {
    return std::tuple(core.numa_node, core.package, core.physical, core.number);
  });
  std::vector<int> numa_nodes;
  for (const Core& core : cores) {
    if (numa_nodes.empty() || numa_nodes.back() != core.numa_node) numa_nodes.push_back(core.numa_node);
  }
  for (size_t task = 0; task < count; ++task) {
    if (binding == CoreBinding::kCores) {
      const auto [first, last] = share(cores.size(), count, task);
      for (size_t i = first; i < last; ++i) result[task].push_back(cores[i].number);
    } else {
      const int node = numa_nodes[share(numa_nodes.size(), count, task).first];
      for (const Core& core : cores) {
        if (core.numa_node == node) result[task].push_back(core.number);
      }
    }
    std::ranges::sort(result[task]);
  }
  return result;
}

std::string format_cores(const std::vector<int>& cores) {
  std::string text;
  for (size_t i = 0; i < cores.size();) {
    size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cores[i]);
    if (last > i) text += fmt::format("-{}", cores[last]);
    i = last + 1;
  }
  return text;
}

std::vector<int> parse_cores(std::string_view text) {
  std::vector<int> cores;
  for (const auto& range : split(text, ',')) {
    const size_t dash = range.find('-');
    const auto first = parse_integer(std::string_view(range).substr(0, dash));
    const auto last =
        dash == std::string::npos ? first : parse_integer(std::string_view(range).substr(dash + 1));
    if (!first || !last) continue;
    for (auto core = *first; core <= *last; ++core) cores.push_back(static_cast<int>(core));
  }
  return cores;
}

}  // namespace muster::detail
