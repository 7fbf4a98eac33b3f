#pragma once

// Which secret servers and their clients use. Those of one process know each other's without being told.
//
// Thread-safe.

#include <string>

#include "muster/net/address.h"

namespace muster::detail {

/// The one that was given, or MUSTER_SECRET. Throws InvalidArgument where there is neither.
std::string secret_for_server(const std::string& given);

/// The same; before MUSTER_SECRET comes that of a server of this process.
std::string secret_for_client(const std::string& target, const std::string& given);

void remember_secret(const std::string& target, const std::string& secret);
void forget_secret(const std::string& target);

/// Of "grpc://h1:2222". Throws InvalidArgument for anything else.
Address address_of_target(const std::string& target);

}  // namespace muster::detail
