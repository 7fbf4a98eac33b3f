#include "muster/collective/native/peer_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "muster/base/error.h"
#include "muster/base/start_thread.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;

// An operation that has not moved for so long may be one that the ranks do not agree about.
constexpr auto kAskAfter = 1s;
constexpr auto kAnswerWithin = 500ms;
constexpr auto kSeenWithin = 500ms;  // what a rank did in shared memory before it left
constexpr auto kLookEvery = 250ms;
constexpr auto kSendLimit = 1s;
constexpr uint32_t kLongestText = 64 * 1024;

// How an Activity travels: these, and then the operation's text.
struct AnswerHead {
  uint64_t number = 0;
  int64_t microseconds = 0;  // since `since`: clocks of different hosts do not agree
  uint64_t running = 0;
};

std::string to_answer(const Activity& activity) {
  const auto ago =
      std::chrono::duration_cast<std::chrono::microseconds>(Deadline::Clock::now() - activity.since);
  const AnswerHead head = {
      .number = activity.number, .microseconds = ago.count(), .running = activity.running ? 1U : 0U};
  return std::string(reinterpret_cast<const char*>(&head), sizeof(head)) + activity.operation;
}

// Nothing when the text is not an answer.
std::optional<Activity> read_answer(const std::string& text) {
  AnswerHead head;
  if (text.size() < sizeof(head)) return std::nullopt;
  memcpy(&head, text.data(), sizeof(head));
  return Activity{.number = head.number,
                  .operation = text.substr(sizeof(head)),
                  .running = head.running != 0,
                  .since = Deadline::Clock::now() - std::chrono::microseconds(head.microseconds)};
}

}  // namespace

PeerWatch::PeerWatch(Options options, std::map<int, Connection>&& connections, GroupState& state)
    : options_(std::move(options)),
      state_(state),
      error_(state.error),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      departures_(options_.ranks.size()) {
  for (auto& [rank, connection] : connections) peers_[rank].connection = std::move(connection);
  thread_ = start_thread([this] { listen(); });
}

PeerWatch::~PeerWatch() {
  eventfd_write(stop_, 1);
  thread_.join();
  for (auto& [rank, peer] : peers_) say(peer, Message::kGoodbye, "");
  close(stop_);
  close(wake_);
}

std::string PeerWatch::describe(int rank) const {
  return options_.ranks[static_cast<size_t>(rank)].to_string();
}

void PeerWatch::say(Peer& peer, Message message, const std::string& text) {
  if (peer.left || peer.deaf) return;
  std::string frame(1, static_cast<char>(message));
  const auto size = static_cast<uint32_t>(text.size());
  frame.append(reinterpret_cast<const char*>(&size), sizeof(size));
  frame += text;
  try {
    peer.connection.send(frame.data(), frame.size(), Deadline::after(kSendLimit));
  } catch (const Error&) {
    peer.deaf = true;  // what it said before, a goodbye perhaps, is still to be read
  }
}

bool PeerWatch::left(int rank) const {
  return departures_[static_cast<size_t>(rank)] != 0;
}

bool PeerWatch::given_up(int rank) const {
  const Deadline::Clock::duration when(departures_[static_cast<size_t>(rank)].load());
  return when.count() != 0 && Deadline::Clock::now().time_since_epoch() - when > kSeenWithin;
}

void PeerWatch::wait_gone(int rank, Deadline deadline) {
  MutexLock lock(mutex_);
  while (!peers_.at(rank).left && !error_.raised() && !deadline.expired())
    changed_.wait_until(lock, deadline.time_point());
}

std::vector<int> PeerWatch::absent(uint64_t number) {
  ask_all();
  const auto deadline = Deadline::after(kAnswerWithin);
  MutexLock lock(mutex_);
  for (;;) {
    std::vector<int> ranks;
    bool answered = true;
    for (const auto& [rank, peer] : peers_) {
      if (!peer.activity || peer.activity->number < number) ranks.push_back(rank);
      answered = answered && (peer.activity || peer.left);
    }
    if (answered || deadline.expired()) return ranks;
    changed_.wait_until(lock, deadline.time_point());
  }
}

void PeerWatch::hear() {
  const MutexLock lock(mutex_);
  for (auto& [rank, peer] : peers_) {
    if (!peer.left) read(rank, peer);
  }
}

void PeerWatch::say_to_all(GroupError::Kind kind, const std::string& reason) {
  for (auto& [rank, peer] : peers_) {
    say(peer, Message::kFailure, fmt::format("{}{}", static_cast<int>(kind), reason));
  }
}

void PeerWatch::tell(GroupError::Kind kind, const std::string& reason) {
  const MutexLock lock(mutex_);
  say_to_all(kind, reason);
  eventfd_write(wake_, 1);
  changed_.notify_all();
}

void PeerWatch::break_group(GroupError::Kind kind, const std::string& reason) {
  error_.set(kind, reason);
  eventfd_write(wake_, 1);
  changed_.notify_all();
  options_.on_failure();
}

void PeerWatch::listen() {
  for (;;) {
    std::vector<pollfd> waits = {{.fd = stop_, .events = POLLIN, .revents = 0}};
    std::vector<int> ranks;
    {
      const MutexLock lock(mutex_);
      for (const auto& [rank, peer] : peers_) {
        if (peer.left) continue;
        waits.push_back({.fd = peer.connection.fd(), .events = POLLIN, .revents = 0});
        ranks.push_back(rank);
      }
    }
    poll(waits.data(), waits.size(), state_.activity().running ? static_cast<int>(kLookEvery / 1ms) : 1000);
    if (waits[0].revents != 0) return;
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (waits[i + 1].revents == 0) continue;
      const MutexLock lock(mutex_);
      read(ranks[i], peers_[ranks[i]]);
    }
    look_for_stalls();
  }
}

void PeerWatch::read(int rank, Peer& peer) {
  std::array<char, 4096> buffer{};
  const iovec part = {.iov_base = buffer.data(), .iov_len = buffer.size()};
  while (!peer.left) {
    try {
      const size_t received = peer.connection.try_receive({&part, 1});
      if (received == 0) return;
      peer.received.append(buffer.data(), received);
    } catch (const Error&) {
      peer.left = true;
      const std::string reason = describe(rank) + " died or was cut off: its connection closed";
      // The connections of a process that dies close one after the other. Whoever sees it first says so
      // before it ends the job for another reason.
      if (!error_.raised()) say_to_all(GroupError::Kind::kPeerLost, reason);
      return break_group(GroupError::Kind::kPeerLost, reason);
    }
    take_all(rank, peer);
  }
}

void PeerWatch::take_all(int rank, Peer& peer) {
  while (!peer.left) {
    uint32_t size = 0;
    if (peer.received.size() < 1 + sizeof(size)) return;
    memcpy(&size, peer.received.data() + 1, sizeof(size));
    if (size > kLongestText) {
      peer.left = true;
      return break_group(GroupError::Kind::kPeerLost, describe(rank) + " sent nonsense");
    }
    if (peer.received.size() < 1 + sizeof(size) + size) return;
    const auto message = static_cast<Message>(peer.received[0]);
    const std::string text = peer.received.substr(1 + sizeof(size), size);
    peer.received.erase(0, 1 + sizeof(size) + size);
    take(rank, peer, message, text);
  }
}

void PeerWatch::take(int rank, Peer& peer, Message message, const std::string& text) {
  switch (message) {
    case Message::kGoodbye:
      peer.left = true;
      departures_[static_cast<size_t>(rank)] = Deadline::Clock::now().time_since_epoch().count();
      return changed_.notify_all();
    case Message::kFailure:
      if (text.empty() || text[0] < '0' || text[0] > '3') return;
      return break_group(static_cast<GroupError::Kind>(text[0] - '0'), text.substr(1));
    case Message::kQuestion:
      return say(peer, Message::kAnswer, to_answer(state_.activity()));
    case Message::kAnswer:
      peer.activity = read_answer(text);
      return changed_.notify_all();
  }
}

void PeerWatch::ask_all() {
  const MutexLock lock(mutex_);
  for (auto& [rank, peer] : peers_) {
    peer.activity.reset();
    say(peer, Message::kQuestion, "");
  }
}

void PeerWatch::look_for_stalls() {
  const Activity now = state_.activity();
  if (!now.running || error_.raised()) return;
  if (inquiry_.number != now.number) inquiry_ = {.number = now.number};
  const auto waited = Deadline::Clock::now() - now.since;
  const bool answered = Deadline::Clock::now() - inquiry_.asked >= kAnswerWithin;
  switch (inquiry_.state) {
    case Inquiry::State::kNone:
      if (waited < std::min<Deadline::Clock::duration>(kAskAfter, options_.stall_warning)) return;
      inquiry_.state = Inquiry::State::kAsked;
      inquiry_.asked = Deadline::Clock::now();
      return ask_all();
    case Inquiry::State::kAsked:
      if (!answered) return;
      inquiry_.state = Inquiry::State::kCompared;
      return compare(now);
    case Inquiry::State::kCompared:
      if (waited < options_.stall_warning) return;
      inquiry_.state = Inquiry::State::kLogged;
      return state_.log_history();
    case Inquiry::State::kLogged:
      return;
  }
}

void PeerWatch::compare(const Activity& ours) {
  const MutexLock lock(mutex_);
  for (const auto& [rank, peer] : peers_) {
    const auto& theirs = peer.activity;
    if (!theirs || !theirs->running || theirs->number != ours.number) continue;
    if (theirs->operation == ours.operation) continue;
    return break_group(GroupError::Kind::kMismatch,
                       fmt::format("{} called {}, {} called {}, both as number {}", describe(options_.rank),
                                   ours.operation, describe(rank), theirs->operation, ours.number));
  }
}

}  // namespace muster::detail
