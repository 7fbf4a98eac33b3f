#include "muster/collective/native/connect_ranks.h"

#include <unistd.h>

#include <algorithm>
#include <set>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/base/text.h"
#include "muster/base/wait_registry.h"
#include "muster/net/host.h"

namespace muster::detail {
namespace {

constexpr char kSeparator = '\n';

std::string to_text(const RankInfo& info) {
  return fmt::format("{1}{0}{2}{0}{3}{0}{4}{0}{5}{0}{6}{0}{7}", kSeparator, info.host_name,
                     info.host_identity, info.machine, info.pid, info.address, info.local_name, info.token);
}

RankInfo rank_info(const std::string& text) {
  const auto parts = split(text, kSeparator);
  if (parts.size() != 7) raise<InvalidArgument>("a rank introduced itself with '{}'", text);
  return {.host_name = parts[0],
          .host_identity = parts[1],
          .machine = parts[2],
          .pid = parse_integer(parts[3]).value_or(0),
          .address = parts[4],
          .local_name = parts[5],
          .token = parts[6]};
}

// One attempt to connect with everybody.
class Attempt {
 public:
  Attempt(const Communicator::Options& options, HostMemory& memory, ConnectedRanks& connected, int number,
          Deadline deadline)
      : options_(options), memory_(memory), connected_(connected), number_(number), deadline_(deadline) {}

  /// Why memory can't be shared; "" when it is.
  std::string connect();

 private:
  bool on_our_host(int rank) const {
    return connected_.host_of_rank[static_cast<size_t>(rank)] ==
           connected_.host_of_rank[static_cast<size_t>(options_.rank)];
  }
  Connection connect_to(const RankInfo& info, const std::string& channel_name, bool& shares);
  void share_memory(int peer, Connection& connection);

  const Communicator::Options& options_;
  HostMemory& memory_;
  ConnectedRanks& connected_;
  const int number_;
  const Deadline deadline_;
};

std::string Attempt::connect() {
  const int me = options_.rank;
  int local = 0;
  for (int rank = 0; rank < options_.size; ++rank) local += on_our_host(rank) ? 1 : 0;
  if (local > 1) {
    auto* state = new (memory_.allocate(RankState::bytes(local), local)) RankState;
    connected_.host_peers[me] = {.rank = me, .arena = memory_.arena(), .state = state};
  }
  std::string trouble;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank == me) continue;
    const RankInfo& info = connected_.ranks[static_cast<size_t>(rank)];
    const std::string who = info.to_string();
    const std::string channel_name =
        fmt::format("{}/control/{}/{}-{}", connected_.id, number_, std::min(me, rank), std::max(me, rank));
    const ScopedWait wait(options_.waits, [&] {
      WaitFor wait_for{.what = "communicator()", .limit = WaitLimit::kOwn};
      if (!options_.tasks.empty()) wait_for.tasks.push_back(options_.tasks[static_cast<size_t>(rank)]);
      return wait_for;
    });
    try {
      bool shares = on_our_host(rank);
      Connection connection = rank > me ? options_.endpoint->accept(channel_name, deadline_, options_.check)
                                        : connect_to(info, channel_name, shares);
      connection.send(&shares, sizeof(shares), deadline_);
      bool they_share = false;
      connection.receive(&they_share, sizeof(they_share), deadline_);
      if (shares && they_share) {
        share_memory(rank, connection);
      } else if (on_our_host(rank)) {
        trouble = who + " can't be reached inside the host";
      }
      connected_.connections.emplace(rank, std::move(connection));
    } catch (const Aborted&) {
      throw;
    } catch (const SystemError& error) {
      trouble = fmt::format("{}: {}", who, error.what());
    } catch (const Error& error) {
      raise<PeerLost>("the ranks of {} could not connect: {}: {}", options_.name, who, error.what());
    }
  }
  return trouble;
}

// To a rank that should be on this host inside it; over TCP when that is not so.
Connection Attempt::connect_to(const RankInfo& info, const std::string& channel_name, bool& shares) {
  if (shares) {
    try {
      return options_.endpoint->connect_local(info.local_name, channel_name, deadline_);
    } catch (const PeerLost&) {
      shares = false;
    }
  }
  return options_.endpoint->connect(Address::parse(info.address), channel_name, deadline_);
}

void Attempt::share_memory(int peer, Connection& connection) {
  uint64_t offset = memory_.arena()->offset_of(connected_.host_peers.at(options_.rank).state);
  connection.send_descriptor(memory_.arena()->fd(), deadline_);
  connection.send(&offset, sizeof(offset), deadline_);
  auto arena = Arena::open(connection.receive_descriptor(deadline_));
  connection.receive(&offset, sizeof(offset), deadline_);
  if (offset + RankState::bytes(1) > arena->capacity()) raise<Refused>("it gave an arena that is too small");
  auto* state = reinterpret_cast<RankState*>(arena->at(offset));
  connected_.host_peers[peer] = {.rank = peer, .arena = std::move(arena), .state = state};
}

// Which ranks may share memory: those of one host, but not of the hosts in `apart`.
std::vector<int> hosts_of(const Communicator::Options& options, const std::vector<RankInfo>& ranks,
                          const std::set<std::string>& apart) {
  std::map<std::string, int> hosts;
  std::vector<int> host_of_rank;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string& identity = ranks[rank].host_identity;
    const bool shares = options.shared_memory && options.size <= kMostOnHost && !apart.contains(identity);
    const std::string key = shares ? identity : fmt::format("rank {}", rank);
    host_of_rank.push_back(hosts.emplace(key, static_cast<int>(hosts.size())).first->second);
  }
  return host_of_rank;
}

}  // namespace

ConnectedRanks connect_ranks(const Communicator::Options& options, HostMemory& memory, bool may_retry) {
  const auto deadline = Deadline::after(options.rendezvous_timeout);
  const Host host = Host::local();
  const RankInfo self = {
      .host_name = host.name,
      .host_identity = options.host_identity.empty() ? host.identity : options.host_identity,
      .machine = host.identity,
      .pid = getpid(),
      .address = options.endpoint->address().to_string(),
      .local_name = options.endpoint->local_name(),
      .token = random_token()};
  ConnectedRanks connected;
  for (const auto& text : options.rendezvous(to_text(self), deadline)) {
    const size_t rank = connected.ranks.size();
    connected.ranks.push_back(rank_info(text));
    connected.ranks.back().task =
        rank < options.tasks.size() ? options.tasks[rank] : fmt::format("rank {}", rank);
  }
  connected.id = options.name + "/" + connected.ranks.front().token;

  std::set<std::string> apart;  // hosts whose ranks can't share memory
  for (int number = 0;; ++number) {
    connected.host_of_rank = hosts_of(options, connected.ranks, apart);
    const std::string trouble = Attempt(options, memory, connected, number, deadline).connect();
    const auto troubles = options.rendezvous(trouble, deadline);
    bool agreed = true;
    for (size_t rank = 0; rank < troubles.size(); ++rank) {
      if (troubles[rank].empty()) continue;
      agreed = false;
      apart.insert(connected.ranks[rank].host_identity);
      log_warning("{} can't share memory inside its host, so the ranks of {} there use TCP: {}",
                  connected.ranks[rank].to_string(), options.name, troubles[rank]);
    }
    if (agreed) return connected;
    if (!may_retry) raise<PeerLost>("the ranks of {} could not connect", options.name);
    if (connected.host_peers.contains(options.rank))
      memory.discard(connected.host_peers.at(options.rank).state);
    connected.host_peers.clear();
    connected.connections.clear();
  }
}

}  // namespace muster::detail
