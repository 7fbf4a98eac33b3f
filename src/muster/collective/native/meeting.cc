#include "muster/collective/native/meeting.h"

#include <unistd.h>

#include <algorithm>
#include <set>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/text.h"
#include "muster/net/host.h"

namespace muster {
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
  Attempt(const Communicator::Options& options, HostMemory& memory, Meeting& meeting, int number,
          Deadline deadline)
      : options_(options), memory_(memory), meeting_(meeting), number_(number), deadline_(deadline) {}

  /// Why memory can't be shared; "" when it is.
  std::string connect();

 private:
  bool on_our_host(int rank) const {
    return meeting_.host_of_rank[static_cast<size_t>(rank)] ==
           meeting_.host_of_rank[static_cast<size_t>(options_.rank)];
  }
  Connection connect_to(const RankInfo& info, const std::string& purpose, bool& shares);
  void share_memory(int peer, Connection& connection);

  const Communicator::Options& options_;
  HostMemory& memory_;
  Meeting& meeting_;
  const int number_;
  const Deadline deadline_;
};

std::string Attempt::connect() {
  const int me = options_.rank;
  int local = 0;
  for (int rank = 0; rank < options_.size; ++rank) local += on_our_host(rank) ? 1 : 0;
  if (local > 1) {
    auto* block = new (memory_.allocate(HostBlock::bytes(local), local)) HostBlock;
    meeting_.host_peers[me] = {.rank = me, .arena = memory_.arena(), .block = block};
  }
  std::string trouble;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank == me) continue;
    const RankInfo& info = meeting_.ranks[static_cast<size_t>(rank)];
    const std::string who = fmt::format("rank {} (host {}, pid {})", rank, info.host_name, info.pid);
    const std::string purpose =
        fmt::format("{}/control/{}/{}-{}", meeting_.id, number_, std::min(me, rank), std::max(me, rank));
    try {
      bool shares = on_our_host(rank);
      Connection connection =
          rank > me ? options_.endpoint->accept(purpose, deadline_) : connect_to(info, purpose, shares);
      connection.send(&shares, sizeof(shares), deadline_);
      bool they_share = false;
      connection.receive(&they_share, sizeof(they_share), deadline_);
      if (shares && they_share) {
        share_memory(rank, connection);
      } else if (on_our_host(rank)) {
        trouble = who + " can't be reached inside the host";
      }
      meeting_.connections.emplace(rank, std::move(connection));
    } catch (const SystemError& error) {
      trouble = fmt::format("{}: {}", who, error.what());
    } catch (const Error& error) {
      raise<PeerLost>("{} could not be met: {}: {}", options_.name, who, error.what());
    }
  }
  return trouble;
}

// To a rank that should be on this host inside it; over TCP when that is not so.
Connection Attempt::connect_to(const RankInfo& info, const std::string& purpose, bool& shares) {
  if (shares) {
    try {
      return options_.endpoint->connect_local(info.local_name, purpose, deadline_);
    } catch (const PeerLost&) {
      shares = false;
    }
  }
  return options_.endpoint->connect(Address::parse(info.address), purpose, deadline_);
}

void Attempt::share_memory(int peer, Connection& connection) {
  uint64_t offset = memory_.arena()->offset_of(meeting_.host_peers.at(options_.rank).block);
  connection.send_descriptor(memory_.arena()->fd(), deadline_);
  connection.send(&offset, sizeof(offset), deadline_);
  auto arena = Arena::open(connection.receive_descriptor(deadline_));
  connection.receive(&offset, sizeof(offset), deadline_);
  if (offset + HostBlock::bytes(1) > arena->capacity()) raise<Refused>("it gave an arena that is too small");
  auto* block = reinterpret_cast<HostBlock*>(arena->at(offset));
  meeting_.host_peers[peer] = {.rank = peer, .arena = std::move(arena), .block = block};
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

Meeting meet(const Communicator::Options& options, HostMemory& memory, bool may_retry) {
  const auto deadline = Deadline::after(options.meet_timeout);
  const Host host = Host::local();
  const RankInfo self = {
      .host_name = host.name,
      .host_identity = options.host_identity.empty() ? host.identity : options.host_identity,
      .machine = host.identity,
      .pid = getpid(),
      .address = options.endpoint->address().to_string(),
      .local_name = options.endpoint->local_name(),
      .token = random_token()};
  Meeting meeting;
  for (const auto& text : options.exchange(to_text(self), deadline)) meeting.ranks.push_back(rank_info(text));
  meeting.id = options.name + "/" + meeting.ranks.front().token;

  std::set<std::string> apart;  // hosts whose ranks can't share memory
  for (int number = 0;; ++number) {
    meeting.host_of_rank = hosts_of(options, meeting.ranks, apart);
    const std::string trouble = Attempt(options, memory, meeting, number, deadline).connect();
    const auto troubles = options.exchange(trouble, deadline);
    bool agreed = true;
    for (size_t rank = 0; rank < troubles.size(); ++rank) {
      if (troubles[rank].empty()) continue;
      agreed = false;
      apart.insert(meeting.ranks[rank].host_identity);
      log_warning("rank {} of {} can't share memory inside its host, so its ranks use TCP: {}", rank,
                  options.name, troubles[rank]);
    }
    if (agreed) return meeting;
    if (!may_retry) raise<PeerLost>("{} could not be met", options.name);
    if (meeting.host_peers.contains(options.rank)) memory.discard(meeting.host_peers.at(options.rank).block);
    meeting.host_peers.clear();
    meeting.connections.clear();
  }
}

}  // namespace muster
