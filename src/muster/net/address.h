#pragma once

// Where a task can be reached: a host (name, IPv4 or IPv6 address) and a port.

#include <compare>
#include <string>
#include <string_view>

namespace muster::detail {

struct Address {
  std::string host;
  int port = 0;  ///< 1..65535; 0 where a port is still to be chosen

  /// "h1:2222", "10.0.0.1:2222", "[::1]:2222". Throws InvalidArgument that says what is wrong with it.
  static Address parse(std::string_view text);

  std::string to_string() const;  ///< with brackets around an IPv6 host
  auto operator<=>(const Address&) const = default;
};

/// True for localhost, 127.0.0.0/8 and ::1: an address that only this host can reach.
bool is_loopback(std::string_view host);

}  // namespace muster::detail
