#include "muster/ps/placement.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "muster/base/align.h"
#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {
namespace {

constexpr size_t kAlign = 16;  // floats: 64 bytes

// Servers with at least as many elements are cut at multiples of kAlign in a variable: two cuts can then be
// wrong by 31 elements, which is 3 %. Smaller ones are cut anywhere.
constexpr size_t kLarge = 1024;

constexpr size_t kMostListed = 6;

constexpr std::array kKinds = {PlacementKind::kRoundRobin, PlacementKind::kBalanced, PlacementKind::kSliced};

void check(const std::vector<Variable>& variables, int servers) {
  if (servers < 1) raise<InvalidArgument>("a placement on {} servers; expected at least 1", servers);
  for (const Variable& variable : variables) {
    if (std::ranges::any_of(variable.shape, [](int64_t size) { return size < 0; })) {
      raise<InvalidArgument>("variable {}: expected sizes that are not negative", variable.to_string());
    }
  }
}

std::vector<size_t> counts_of(const std::vector<Variable>& variables) {
  std::vector<size_t> counts;
  std::ranges::transform(variables, std::back_inserter(counts), &Variable::count);
  return counts;
}

// The server of each variable.
std::vector<size_t> round_robin(size_t variables, size_t servers) {
  std::vector<size_t> server_of(variables);
  for (size_t i = 0; i < variables; ++i) server_of[i] = i % servers;
  return server_of;
}

std::vector<size_t> balanced(const std::vector<size_t>& counts, size_t servers) {
  std::vector<size_t> order(counts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), [&](size_t i) { return counts[i]; });
  std::vector<size_t> server_of(counts.size());
  std::vector<size_t> load(servers);
  for (const size_t variable : order) {
    const auto least = std::ranges::min_element(load);
    *least += counts[variable];
    server_of[variable] = static_cast<size_t>(least - load.begin());
  }
  return server_of;
}

// Where, in the row of all variables, a server ends and the next one begins: as many as servers.
std::vector<size_t> cuts_of(const std::vector<size_t>& counts, size_t servers) {
  const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
  const size_t unit = total / servers >= kLarge ? kAlign : 1;
  std::vector<size_t> cuts;
  size_t variable = 0;
  size_t begin = 0;  // of the variable in the row
  for (size_t server = 1; server < servers; ++server) {
    const size_t ideal = total / servers * server + total % servers * server / servers;
    while (variable < counts.size() && begin + counts[variable] <= ideal) begin += counts[variable++];
    cuts.push_back(begin + (ideal - begin) / unit * unit);
  }
  cuts.push_back(total);
  return cuts;
}

}  // namespace

size_t Variable::count() const {
  size_t count = 1;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  return count;
}

std::string Variable::to_string() const {
  return fmt::format("{} [{}]", name, fmt::join(shape, ", "));
}

PlacementKind parse_placement(const std::string& text) {
  for (const PlacementKind kind : kKinds) {
    if (text == to_string(kind)) return kind;
  }
  raise<InvalidArgument>("'{}' is not a placement; expected round-robin, balanced or sliced", text);
}

const char* to_string(PlacementKind kind) {
  switch (kind) {
    case PlacementKind::kRoundRobin:
      return "round-robin";
    case PlacementKind::kBalanced:
      return "balanced";
    case PlacementKind::kSliced:
      break;
  }
  return "sliced";
}

Placement::Placement(std::vector<Variable> variables, int servers, PlacementKind kind)
    : variables_(std::move(variables)), kind_(kind) {
  check(variables_, servers);
  slices_.resize(static_cast<size_t>(servers));
  const std::vector<size_t> counts = counts_of(variables_);
  if (kind == PlacementKind::kSliced) {
    cut(counts);
    return;
  }
  const std::vector<size_t> server_of = kind == PlacementKind::kBalanced
                                            ? balanced(counts, slices_.size())
                                            : round_robin(counts.size(), slices_.size());
  for (size_t i = 0; i < counts.size(); ++i) {
    add(server_of[i], {.variable = i, .begin = 0, .count = counts[i]});
  }
}

void Placement::cut(const std::vector<size_t>& counts) {
  const std::vector<size_t> cuts = cuts_of(counts, slices_.size());
  size_t server = 0;
  size_t at = 0;  // in the row of all variables
  for (size_t variable = 0; variable < counts.size(); ++variable) {
    const size_t begin = at;
    const size_t end = begin + counts[variable];
    while (at < end) {
      while (cuts[server] <= at) ++server;
      const size_t stop = std::min(end, cuts[server]);
      add(server, {.variable = variable, .begin = at - begin, .count = stop - at});
      at = stop;
    }
  }
}

void Placement::add(size_t server, Slice slice) {
  if (slice.count == 0) return;
  slice.offset = extent(static_cast<int>(server));
  slices_[server].push_back(slice);
}

size_t Placement::extent(int server) const {
  const std::vector<Slice>& held = slices(server);
  return held.empty() ? 0 : round_up(held.back().offset + held.back().count, kAlign);
}

size_t Placement::bytes(int server) const {
  size_t count = 0;
  for (const Slice& slice : slices(server)) count += slice.count;
  return count * sizeof(float);
}

std::string Placement::to_string() const {
  std::string text;
  for (int server = 0; server < servers(); ++server) {
    const std::vector<Slice>& held = slices(server);
    std::vector<std::string> names;
    for (const Slice& slice : held) {
      const Variable& variable = variables_[slice.variable];
      if (names.size() == kMostListed) {
        names.emplace_back("...");
        break;
      }
      names.push_back(slice.count == variable.count()
                          ? variable.name
                          : fmt::format("{}[{}:{}]", variable.name, slice.begin, slice.begin + slice.count));
    }
    fmt::format_to(std::back_inserter(text), "server {}: {} in {} variable{}{}{}\n", server,
                   format_bytes(bytes(server)), held.size(), held.size() == 1 ? "" : "s",
                   held.empty() ? "" : ": ", fmt::join(names, ", "));
  }
  return text;
}

}  // namespace muster::detail
