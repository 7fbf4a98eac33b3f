#pragma once

// What a name stands for: often several addresses (IPv6 and IPv4, say), of which not all can be reached.
//
//   const auto socket = first_that_works(resolve(address, /*passive=*/false), deadline,
//                                        [](const ResolvedAddress& one, Deadline share) { ... });
//
// Values and functions without state. resolve() blocks as long as the system's resolver does.

#include <sys/socket.h>

#include <vector>

#include "muster/base/error.h"
#include "muster/deadline.h"
#include "muster/net/address.h"

namespace muster::detail {

/// As the socket calls take it.
struct ResolvedAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

/// All addresses of a name, in the order in which they should be tried; `passive` for one to listen on.
/// Throws SystemError when the name is not known.
std::vector<ResolvedAddress> resolve(const Address& address, bool passive);

/// Gives what use(candidate, deadline) makes of the first that works, and throws what became of the last when
/// none does. One that does not answer must leave time for the others: each but the last gets its share of
/// what remains.
template <typename Candidate, typename Use>
auto first_that_works(const std::vector<Candidate>& candidates, Deadline deadline, const Use& use) {
  for (size_t i = 0;; ++i) {
    const auto left = static_cast<Deadline::Clock::rep>(candidates.size() - i);
    try {
      return use(candidates.at(i), left == 1 ? deadline : Deadline::after(deadline.remaining() / left));
    } catch (const Error&) {
      if (left == 1) throw;
    }
  }
}

}  // namespace muster::detail
