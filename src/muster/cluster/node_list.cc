#include "muster/cluster/node_list.h"

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {
namespace {

// Far more nodes than any machine has: a corrupt list must not eat the memory.
constexpr size_t kMostNodes = 100'000;

[[noreturn]] void fail(std::string_view text, const std::string& reason) {
  raise<InvalidArgument>("'{}' is not a list such as gpu[01-03,07]: {}", text, reason);
}

// Splits at commas outside brackets.
std::vector<std::string> split_names(std::string_view text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (depth < 0 || depth > 1) fail(text, "its brackets do not pair");
    if (c == ',' && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  if (depth != 0) fail(text, "its brackets do not pair");
  return parts;
}

// "01-03,07" is 01, 02, 03, 07.
std::vector<std::string> expand_range(std::string_view list, std::string_view text) {
  std::vector<std::string> result;
  for (const auto& item : split(list, ',')) {
    const size_t dash = item.find('-');
    const std::string low = item.substr(0, dash);
    const std::string high = dash == std::string::npos ? low : item.substr(dash + 1);
    const auto first = parse_integer(low);
    const auto last = parse_integer(high);
    if (!first || !last || *first < 0 || *last < *first) fail(text, fmt::format("'{}' is not a range", item));
    if (static_cast<size_t>(*last - *first) + result.size() >= kMostNodes)
      fail(text, "it has too many nodes");
    for (long long number = *first; number <= *last; ++number) {
      result.push_back(fmt::format("{:0{}}", number, low.size()));
    }
  }
  return result;
}

std::vector<std::string> expand_name(const std::string& name, std::string_view text) {
  const size_t open = name.find('[');
  if (open == std::string::npos) {
    if (name.empty()) fail(text, "a name is empty");
    return {name};
  }
  const size_t close = name.find(']', open);
  const std::string prefix = name.substr(0, open);
  const std::string rest = name.substr(close + 1);
  const auto tails = rest.empty() ? std::vector<std::string>{""} : expand_name(rest, text);
  std::vector<std::string> result;
  for (const auto& number : expand_range(name.substr(open + 1, close - open - 1), text)) {
    for (const auto& tail : tails) result.push_back(fmt::format("{}{}{}", prefix, number, tail));
    if (result.size() > kMostNodes) fail(text, "it has too many nodes");
  }
  return result;
}

}  // namespace

std::vector<std::string> expand_node_list(std::string_view text) {
  std::vector<std::string> nodes;
  for (const auto& name : split_names(text)) {
    for (auto& node : expand_name(name, text)) nodes.push_back(std::move(node));
  }
  return nodes;
}

std::vector<int> expand_counts(std::string_view text) {
  std::vector<int> counts;
  for (const auto& item : split(text, ',')) {
    const size_t open = item.find("(x");
    const auto count = parse_integer(item.substr(0, open));
    long long times = 1;
    if (open != std::string::npos) {
      const auto parsed = parse_integer(item.substr(open + 2, item.size() - open - 3));
      times = item.ends_with(')') && parsed ? *parsed : -1;
    }
    if (!count || *count < 0 || *count > 1'000'000 || times < 1 ||
        times > static_cast<long long>(kMostNodes)) {
      raise<InvalidArgument>("'{}' is not a list of counts such as 2(x3),1", text);
    }
    counts.insert(counts.end(), static_cast<size_t>(times), static_cast<int>(*count));
  }
  return counts;
}

}  // namespace muster::detail
