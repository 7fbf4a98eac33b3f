#include "muster/host_list.h"

#include <cerrno>
#include <fstream>
#include <sstream>

#include "muster/base/error.h"
#include "muster/base/text.h"
#include "muster/net/host.h"

namespace muster::detail {
namespace {

bool is_host(const std::string& name) {
  const std::string host = HostEntry{.name = name}.address();
  return !host.empty() && !name.starts_with('-') && !name.starts_with('@') &&
         name.find_first_of(" \t\"'$`;&|<>()\\") == std::string::npos;
}

int parse_slots(std::string_view text) {
  const auto slots = parse_integer(text);
  return slots && *slots >= 1 && *slots <= 100'000 ? static_cast<int>(*slots) : 0;
}

// Empty when the line is malformed.
HostEntry parse_line(const std::string& line) {
  std::istringstream words(line);
  HostEntry host;
  words >> host.name;
  const size_t colon = host.name.find(':');
  if (colon != std::string::npos && colon == host.name.rfind(':')) {  // several: an IPv6 address
    host.slots = parse_slots(std::string_view(host.name).substr(colon + 1));
    if (host.slots == 0) return {};
    host.name.resize(colon);
  }
  std::string word;
  while (words >> word) {
    if (!word.starts_with("slots=") || host.slots != 0) return {};
    host.slots = parse_slots(std::string_view(word).substr(6));
    if (host.slots == 0) return {};
  }
  return is_host(host.name) ? host : HostEntry{};
}

}  // namespace

std::string HostEntry::address() const {
  const size_t at = name.rfind('@');
  return at == std::string::npos ? name : name.substr(at + 1);
}

std::vector<HostEntry> parse_hosts(std::string_view text) {
  std::vector<HostEntry> hosts;
  for (const auto& name : split(text, ',')) {
    if (!is_host(name)) raise<InvalidArgument>("--hosts {}: '{}' is not the name of a host", text, name);
    hosts.push_back({.name = name});
  }
  return hosts;
}

std::vector<HostEntry> read_hostfile(const std::filesystem::path& file) {
  std::ifstream input(file);
  if (!input) raise<InvalidArgument>("--hostfile {} can't be read: {}", file.string(), describe_errno(errno));
  std::vector<HostEntry> hosts;
  std::string line;
  for (int number = 1; std::getline(input, line); ++number) {
    line.resize(std::min(line.find('#'), line.size()));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const HostEntry host = parse_line(line);
    if (host.name.empty()) {
      raise<InvalidArgument>("--hostfile {}, line {}: '{}' is not like h1, h1 slots=4 or h1:4", file.string(),
                             number, line);
    }
    hosts.push_back(host);
  }
  if (hosts.empty()) raise<InvalidArgument>("--hostfile {} names no host", file.string());
  return hosts;
}

bool is_this_host(const HostEntry& host) {
  return host.name == "localhost" || host.name == Host::local().name;
}

int default_workers(const std::vector<HostEntry>& hosts) {
  for (const auto& host : hosts) {
    if (host.slots == hosts.front().slots) continue;
    raise<InvalidArgument>(
        "--hostfile: {} has {} slots and {} has {}, but each node runs an equal share of the workers: give "
        "all hosts the same, or say how many there are by --workers",
        hosts.front().name, hosts.front().slots, host.name, host.slots);
  }
  return static_cast<int>(hosts.size()) * std::max(1, hosts.front().slots);
}

}  // namespace muster::detail
