#include "muster/base/environment.h"

#include <unistd.h>

#include <climits>
#include <fstream>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {

void Environment::add(std::string_view assignment) {
  const size_t equals = assignment.find('=');
  if (equals != std::string_view::npos)
    variables_.emplace(assignment.substr(0, equals), assignment.substr(equals + 1));
}

Environment Environment::of_process() {
  Environment result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) result.add(*entry);
  return result;
}

Environment Environment::of_process(pid_t process) {
  Environment result;
  std::ifstream file(fmt::format("/proc/{}/environ", process), std::ios::binary);
  for (std::string assignment; std::getline(file, assignment, '\0');) result.add(assignment);
  return result;
}

std::optional<std::string> Environment::get(const std::string& name) const {
  const auto found = variables_.find(name);
  if (found == variables_.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

std::optional<int> Environment::integer(const std::string& name, int minimum) const {
  const auto text = get(name);
  if (!text) return std::nullopt;
  const auto value = parse_integer(*text);
  if (!value || *value < minimum || *value > INT_MAX) {
    raise<InvalidArgument>("the environment variable {}={} is not a whole number of at least {}", name, *text,
                           minimum);
  }
  return static_cast<int>(*value);
}

std::vector<std::string> Environment::names_with_prefix(const std::string& prefix) const {
  std::vector<std::string> names;
  for (auto it = variables_.lower_bound(prefix); it != variables_.end() && it->first.starts_with(prefix);
       ++it) {
    names.push_back(it->first);
  }
  return names;
}

std::vector<std::string> Environment::assignments() const {
  std::vector<std::string> result;
  result.reserve(variables_.size());
  for (const auto& [name, value] : variables_) result.push_back(fmt::format("{}={}", name, value));
  return result;
}

std::vector<char*> exec_pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (auto& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace muster::detail
