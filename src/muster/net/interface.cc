#include "muster/net/interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {
namespace {

std::string numeric_host(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text.data(), text.size());
  } else {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text.data(), text.size());
  }
  return text.data();
}

bool is_link_local(const sockaddr* address) {
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

}  // namespace

std::vector<Interface> list_interfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0)
    raise<SystemError>("the network interfaces can't be listed: {}", describe_errno(errno));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, &freeifaddrs);
  std::vector<Interface> result;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      if ((entry->ifa_flags & IFF_UP) == 0 || is_link_local(entry->ifa_addr)) continue;
      result.push_back({entry->ifa_name, numeric_host(entry->ifa_addr)});
    }
  }
  return result;
}

Interface choose_interface(const std::vector<Interface>& interfaces, std::string_view choice) {
  const bool exclude = choice.starts_with('^');
  const auto prefixes = split(exclude ? choice.substr(1) : choice, ',');
  if (std::any_of(prefixes.begin(), prefixes.end(), [](const auto& prefix) { return prefix.empty(); })) {
    raise<InvalidArgument>(
        "'{}' does not name interfaces: expected names or prefixes such as eth,ib or ^lo,docker", choice);
  }
  if (exclude) {
    for (const auto& interface : interfaces) {
      const bool out = std::any_of(prefixes.begin(), prefixes.end(),
                                   [&](const auto& prefix) { return interface.name.starts_with(prefix); });
      if (!out) return interface;
    }
  } else {
    for (const auto& prefix : prefixes) {
      for (const auto& interface : interfaces) {
        if (interface.name.starts_with(prefix)) return interface;
      }
    }
  }
  std::string there;
  for (const auto& interface : interfaces) {
    there += fmt::format("{}{} ({})", there.empty() ? "" : ", ", interface.name, interface.address);
  }
  raise<InvalidArgument>("no network interface fits '{}'; there are: {}", choice,
                         there.empty() ? "none" : there);
}

std::string address_towards(const Address& peer) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(peer.host.c_str(), std::to_string(peer.port).c_str(), &hints, &found);
  if (error != 0) raise<SystemError>("the host {} can't be found: {}", peer.host, gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  std::string reason = "no address";
  for (const addrinfo* candidate = found; candidate != nullptr; candidate = candidate->ai_next) {
    const int fd = socket(candidate->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage local{};
    socklen_t size = sizeof(local);
    const bool ok = connect(fd, candidate->ai_addr, candidate->ai_addrlen) == 0 &&
                    getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) == 0;
    if (!ok) reason = describe_errno(errno);
    close(fd);
    if (ok) return numeric_host(reinterpret_cast<const sockaddr*>(&local));
  }
  raise<SystemError>("there is no route to {}: {}", peer.host, reason);
}

}  // namespace muster::detail
