#include "muster/ps/placement.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {
namespace {

// Servers with at least kLarge bytes are cut at multiples of kAlign in a variable: two cuts can then be wrong
// by less than 128 bytes, which is 3 %. Smaller ones are cut between any two elements.
constexpr size_t kAlign = 64;
constexpr size_t kLarge = 4096;

using Slices = std::vector<std::vector<Slice>>;  // of each server

constexpr size_t kMostListed = 6;

constexpr std::array kKinds = {PlacementKind::kRoundRobin, PlacementKind::kBalanced, PlacementKind::kSliced};

void check(const std::vector<ParameterInfo>& variables, int servers) {
  if (servers < 1) raise<InvalidArgument>("a placement on {} servers; expected at least 1", servers);
  for (const ParameterInfo& variable : variables) {
    if (std::ranges::any_of(variable.shape, [](int64_t size) { return size < 0; })) {
      raise<InvalidArgument>("variable {}: expected sizes that are not negative", variable.to_string());
    }
  }
}

std::vector<size_t> bytes_of(const std::vector<ParameterInfo>& variables) {
  std::vector<size_t> bytes;
  std::ranges::transform(variables, std::back_inserter(bytes), &ParameterInfo::bytes);
  return bytes;
}

// The server of each variable.
std::vector<size_t> round_robin(size_t variables, size_t servers) {
  std::vector<size_t> server_of(variables);
  for (size_t i = 0; i < variables; ++i) server_of[i] = i % servers;
  return server_of;
}

std::vector<size_t> balanced(const std::vector<size_t>& bytes, size_t servers) {
  std::vector<size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), [&](size_t i) { return bytes[i]; });
  std::vector<size_t> server_of(bytes.size());
  std::vector<size_t> load(servers);
  for (const size_t variable : order) {
    const auto least = std::ranges::min_element(load);
    *least += bytes[variable];
    server_of[variable] = static_cast<size_t>(least - load.begin());
  }
  return server_of;
}

Slices whole(const std::vector<ParameterInfo>& variables, size_t servers, PlacementKind kind) {
  const std::vector<size_t> server_of = kind == PlacementKind::kBalanced
                                            ? balanced(bytes_of(variables), servers)
                                            : round_robin(variables.size(), servers);
  Slices slices(servers);
  for (size_t i = 0; i < variables.size(); ++i) {
    if (const size_t count = variables[i].count(); count > 0)
      slices[server_of[i]].push_back({.parameter = i, .begin = 0, .count = count});
  }
  return slices;
}

// All variables in a row, cut where a server ends and the next one begins.
Slices sliced(const std::vector<ParameterInfo>& variables, size_t servers) {
  const std::vector<size_t> bytes = bytes_of(variables);
  const size_t total = std::accumulate(bytes.begin(), bytes.end(), size_t{0});
  const auto ideal = [&](size_t server) {  // where the server ends in the row
    return total / servers * (server + 1) + total % servers * (server + 1) / servers;
  };
  Slices slices(servers);
  size_t server = 0;
  size_t start = 0;  // of the variable in the row
  for (size_t i = 0; i < variables.size(); start += bytes[i++]) {
    const size_t element = size_of(variables[i].dtype);
    const size_t unit = total / servers >= kLarge ? kAlign : element;
    for (size_t at = 0; at < bytes[i];) {
      size_t end = bytes[i];
      if (server + 1 < servers && ideal(server) < start + end)
        end = ideal(server) <= start ? 0 : (ideal(server) - start) / unit * unit;
      if (end > at)
        slices[server].push_back({.parameter = i, .begin = at / element, .count = (end - at) / element});
      at = std::max(at, end);
      if (at < bytes[i]) ++server;
    }
  }
  return slices;
}

}  // namespace

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

Placement::Placement(const std::vector<ParameterInfo>& variables, int servers, PlacementKind kind)
    : kind_(kind) {
  check(variables, servers);
  const auto count = static_cast<size_t>(servers);
  for (auto& slices :
       kind == PlacementKind::kSliced ? sliced(variables, count) : whole(variables, count, kind))
    layouts_.emplace_back(variables, std::move(slices));
}

size_t Placement::bytes(int server) const {
  size_t bytes = 0;
  for (size_t i = 0; i < layout(server).size(); ++i) bytes += layout(server).bytes(i);
  return bytes;
}

std::string Placement::to_string() const {
  std::string text;
  for (int server = 0; server < servers(); ++server) {
    const std::vector<Slice>& held = layout(server).slices();
    std::vector<std::string> names;
    for (const Slice& slice : held) {
      const ParameterInfo& variable = variables()[slice.parameter];
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
