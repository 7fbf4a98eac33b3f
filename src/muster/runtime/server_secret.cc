#include "muster/runtime/server_secret.h"

#include <map>
#include <string_view>

#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "muster/base/mutex.h"

namespace muster::detail {

namespace {

constexpr std::string_view kScheme = "grpc://";

struct Known {
  Mutex mutex;
  std::map<std::string, std::string> secrets MUSTER_GUARDED_BY(mutex);
};

// Of the servers of this process.
Known& known() {
  static Known servers;
  return servers;
}

}  // namespace

std::string secret_for_server(const std::string& given) {
  if (!given.empty()) return given;
  if (const auto secret = Environment::of_process().get("MUSTER_SECRET")) return *secret;
  throw InvalidArgument(
      "a server runs whatever a client's graph says, and so needs a secret that its clients know: set "
      "MUSTER_SECRET, the same for all tasks and clients, or give Options::secret");
}

std::string secret_for_client(const std::string& target, const std::string& given) {
  if (given.empty()) {
    Known& servers = known();
    const MutexLock lock(servers.mutex);
    if (const auto found = servers.secrets.find(target); found != servers.secrets.end()) return found->second;
  }
  if (!given.empty()) return given;
  if (const auto secret = Environment::of_process().get("MUSTER_SECRET")) return *secret;
  raise<InvalidArgument>(
      "{} lets in only those who know its secret: set MUSTER_SECRET to that of its cluster, or give "
      "Options::secret",
      target);
}

void remember_secret(const std::string& target, const std::string& secret) {
  Known& servers = known();
  const MutexLock lock(servers.mutex);
  servers.secrets[target] = secret;
}

void forget_secret(const std::string& target) {
  Known& servers = known();
  const MutexLock lock(servers.mutex);
  servers.secrets.erase(target);
}

Address address_of_target(const std::string& target) {
  if (!target.starts_with(kScheme))
    raise<InvalidArgument>("'{}' is no target: expected \"local\", or \"grpc://host:port\" of a server",
                           target);
  return Address::parse(target.substr(kScheme.size()));
}

}  // namespace muster::detail
