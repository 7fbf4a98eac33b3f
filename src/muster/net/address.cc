#include "muster/net/address.h"

#include <arpa/inet.h>

#include <array>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {

Address Address::parse(std::string_view text) {
  std::string_view host;
  std::string_view port;
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == std::string_view::npos || close + 1 >= text.size() || text[close + 1] != ':') {
      raise<InvalidArgument>("'{}' is not an address: expected [IPv6]:port", text);
    }
    host = text.substr(1, close - 1);
    port = text.substr(close + 2);
    std::array<unsigned char, sizeof(in6_addr)> bytes{};
    if (inet_pton(AF_INET6, std::string(host).c_str(), bytes.data()) != 1) {
      raise<InvalidArgument>("'{}' is not an address: {} is not an IPv6 address", text, host);
    }
  } else {
    const size_t colon = text.rfind(':');
    if (colon == std::string_view::npos) {
      raise<InvalidArgument>("'{}' is not an address: it has no port; expected host:port", text);
    }
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (host.find(':') != std::string_view::npos) {
      raise<InvalidArgument>("'{}' is not an address: write an IPv6 host in brackets, [{}]:port", text, host);
    }
  }
  if (host.empty())
    raise<InvalidArgument>("'{}' is not an address: it has no host; expected host:port", text);
  if (host.find_first_of(" \t\n/@,;\"'") != std::string_view::npos) {
    raise<InvalidArgument>("'{}' is not an address: '{}' is not a host name", text, host);
  }
  const auto number = parse_integer(port);
  if (!number || *number < 1 || *number > 65535) {
    raise<InvalidArgument>("'{}' is not an address: port '{}' is not between 1 and 65535", text, port);
  }
  return {std::string(host), static_cast<int>(*number)};
}

std::string Address::to_string() const {
  if (host.find(':') != std::string::npos) return fmt::format("[{}]:{}", host, port);
  return fmt::format("{}:{}", host, port);
}

bool is_loopback(std::string_view host) {
  if (host == "localhost" || host == "::1") return true;
  in_addr ipv4{};
  return inet_pton(AF_INET, std::string(host).c_str(), &ipv4) == 1 && (ntohl(ipv4.s_addr) >> 24) == 127;
}

}  // namespace muster::detail
