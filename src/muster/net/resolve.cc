#include "muster/net/resolve.h"

#include <netdb.h>

#include <cstring>
#include <memory>
#include <string>

namespace muster::detail {

std::vector<ResolvedAddress> resolve(const Address& address, bool passive) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (error != 0)
    raise<SystemError>("the host of {} is not known: {}", address.to_string(), gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, freeaddrinfo);
  std::vector<ResolvedAddress> resolved;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    ResolvedAddress& copy = resolved.emplace_back();
    memcpy(&copy.storage, one->ai_addr, one->ai_addrlen);
    copy.size = one->ai_addrlen;
  }
  return resolved;
}

}  // namespace muster::detail
