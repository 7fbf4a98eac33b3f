#include "muster/collective/native/link_executor.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "muster/base/convert.h"
#include "muster/base/error.h"
#include "muster/collective/kernels.h"

namespace muster::detail {
namespace {

struct Header {
  static constexpr uint64_t kMagic = 0x6d75737465722e31;
  uint64_t magic = kMagic;
  uint64_t number = 0;
  uint64_t count = 0;
  uint32_t peer = 0;
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  uint8_t wire_dtype = 0;  // 1 + its number; 0: that of the operation

  bool operator==(const Header&) const = default;

  static Header of(const OperationContext& context, std::optional<DType> wire_dtype) {
    Header header = {.number = context.number,
                     .count = context.called.count,
                     .peer = static_cast<uint32_t>(context.called.peer),
                     .collective = context.called.collective,
                     .dtype = context.called.dtype,
                     .op = context.called.op,
                     .wire_dtype = static_cast<uint8_t>(wire_dtype ? 1 + static_cast<int>(*wire_dtype) : 0)};
    if (header.collective == Collective::kReceive) header.collective = Collective::kSend;
    if (header.collective == Collective::kSend) header.peer = 0;  // each side names the other
    return header;
  }

  // Of another rank, which for a message is the other side of `ours`, on `rank`.
  std::string describe(const Operation& ours, int rank) const {
    Operation operation = {
        .collective = collective, .count = count, .dtype = dtype, .op = op, .peer = static_cast<int>(peer)};
    if (collective == Collective::kSend) {
      operation.peer = rank;
      if (ours.collective == Collective::kSend) operation.collective = Collective::kReceive;
    }
    return fmt::format("{} (number {})", operation.to_string(), number);
  }
};

// A range of elements, of which those before `at` are done.
struct Range {
  size_t begin = 0;
  size_t end = 0;
  size_t at = 0;
  bool done() const { return at == end; }
};

// How far a transfer that has got to `at` may go, at most to `limit`, when `other` must be done first.
size_t held_back(const Range& other, size_t at, size_t limit) {
  return other.done() || at >= other.end ? limit : std::min(limit, std::max(other.at, at));
}

}  // namespace

// One stage under way.
class LinkExecutor::Run {
 public:
  Run(LinkExecutor& executor, const OperationContext& context, const Stage& stage, const BlockLayout& layout,
      const void* from, void* to)
      : options_(executor.options_),
        context_(context),
        operation_(context.operation),
        wire_dtype_(wire_dtype_of(executor.options_, context.operation)),
        header_(Header::of(context, wire_dtype_)),
        size_(size_of(operation_.dtype)),
        wire_size_(wire_dtype_ ? size_of(*wire_dtype_) : size_),
        segment_(std::max<size_t>(options_.segment / size_, 1)),
        in_place_(from == to),
        from_(static_cast<const std::byte*>(from)),
        to_(static_cast<std::byte*>(to)) {
    for (size_t step = 0; step < stage.steps.size(); ++step) add(executor, stage.steps[step], step, layout);
  }

  void run() {
    int idle = 0;
    while (!done()) {
      bool moved = false;
      for (auto& peer : peers_) moved |= move_some(peer);
      while (first_open_ < groups_.size() && groups_[first_open_].range.done()) ++first_open_;
      if (moved) {
        idle = 0;
        armed_ = false;
        if (context_.wait != nullptr) context_.wait->wait->get_on();
      } else {
        wait(++idle);
      }
    }
  }

 private:
  struct Sending {
    size_t step = 0;
    Range range;
  };

  // Receives of the same elements in one step are one group, reduced together in the order of ranks.
  struct Group {
    size_t step = 0;
    Range range;
    Action action = Action::kOverwrite;
    bool final = false;
    std::vector<size_t> peers;  // indices
  };

  struct Peer {
    int rank = 0;
    Link* link = nullptr;
    Scratch* scratch = nullptr;

    std::vector<Sending> sends;
    size_t next_send = 0;
    size_t header_sent = 0;
    size_t sent = 0;       // bytes beyond sends[next_send].range.at: of an element, or of `converted`
    size_t converted = 0;  // elements that wait in scratch.outgoing
    bool full = false;     // the link took less than it was given

    std::vector<size_t> receives;  // indices of groups
    size_t next_receive = 0;
    size_t header_received = 0;
    Header header;
    bool stuck = false;   // there is no room for more until other transfers have got further
    size_t received = 0;  // bytes beyond the group's range.at: in scratch.incoming, or of an element
  };

  static std::optional<DType> wire_dtype_of(const Options& options, const Operation& operation) {
    const bool sums = operation.op == ReduceOp::kSum || operation.op == ReduceOp::kAverage;
    if (operation.dtype == DType::kFloat32 && operation.reduces() && sums) return options.wire_dtype;
    return {};
  }

  size_t index_of(LinkExecutor& executor, int rank) {
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (peers_[i].rank == rank) return i;
    }
    Peer& peer = peers_.emplace_back();
    peer.rank = rank;
    peer.link = &options_.link(rank, context_);
    peer.scratch = &executor.scratch_[rank];
    return peers_.size() - 1;
  }

  void add(LinkExecutor& executor, const Step& step, size_t number, const BlockLayout& layout) {
    const auto range_of = [&](const Blocks& blocks) {
      const size_t begin = layout.begin(blocks.begin);
      return Range{begin, layout.begin(blocks.end), begin};
    };
    for (const auto& send : step.sends) {
      peers_[index_of(executor, send.peer)].sends.push_back({number, range_of(send.blocks)});
    }
    const size_t first = groups_.size();
    for (const auto& receive : step.receives) {
      const Range range = range_of(receive.blocks);
      size_t group = first;
      while (group < groups_.size() &&
             (receive.action == Action::kOverwrite || groups_[group].range.begin != range.begin ||
              groups_[group].range.end != range.end)) {
        ++group;
      }
      if (group == groups_.size()) groups_.push_back({number, range, receive.action, receive.final, {}});
      const size_t peer = index_of(executor, receive.peer);
      groups_[group].peers.push_back(peer);
      peers_[peer].receives.push_back(group);
    }
    for (size_t group = first; group < groups_.size(); ++group) {
      auto& members = groups_[group].peers;
      std::sort(members.begin(), members.end(),
                [&](size_t a, size_t b) { return peers_[a].rank < peers_[b].rank; });
    }
  }

  bool done() const {
    return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
      return peer.next_send == peer.sends.size() && peer.next_receive == peer.receives.size();
    });
  }

  // A send goes no further than what earlier steps have received.
  size_t send_limit(const Sending& sending) const {
    size_t limit = sending.range.end;
    for (size_t i = first_open_; in_place_ && i < groups_.size() && groups_[i].step < sending.step; ++i) {
      limit = held_back(groups_[i].range, sending.range.at, limit);
    }
    return limit;
  }

  // A receive writes no further than what its own and earlier steps have sent, and earlier steps received.
  size_t write_limit(const Group& group) const {
    size_t limit = group.range.end;
    if (!in_place_) return limit;
    for (const auto& peer : peers_) {
      for (size_t i = peer.next_send; i < peer.sends.size() && peer.sends[i].step <= group.step; ++i) {
        limit = held_back(peer.sends[i].range, group.range.at, limit);
      }
    }
    for (size_t i = first_open_; i < groups_.size() && groups_[i].step < group.step; ++i) {
      limit = held_back(groups_[i].range, group.range.at, limit);
    }
    return limit;
  }

  // What of a send can go now, as bytes.
  std::span<const std::byte> outgoing(Peer& peer, Sending& sending) {
    const size_t limit = send_limit(sending);
    if (!wire_dtype_) {
      if (limit == sending.range.at) return {};
      // Not all at once: the receives must have their turn, and what they read is still in the cache.
      const size_t bytes = std::min((limit - sending.range.at) * size_, options_.segment);
      return {from_ + sending.range.at * size_ + peer.sent, bytes - peer.sent};
    }
    auto& buffer = peer.scratch->outgoing;
    if (peer.converted == 0 && limit > sending.range.at) {
      peer.converted = std::min(limit - sending.range.at, segment_);
      buffer.resize(std::max(buffer.size(), segment_ * wire_size_));
      // Rounded in our memory too: all ranks must end with the same bits.
      auto* values = to_ + sending.range.at * size_;
      convert(operation_.dtype, values, *wire_dtype_, buffer.data(), peer.converted);
      convert(*wire_dtype_, buffer.data(), operation_.dtype, values, peer.converted);
    }
    return {buffer.data() + peer.sent, peer.converted * wire_size_ - peer.sent};
  }

  bool move_some(Peer& peer) {
    try {
      const bool sent = send_some(peer);
      return receive_some(peer) || sent;
    } catch (const PeerLost& error) {
      context_.connection_broke(peer.rank, error.what());
    }
  }

  bool send_some(Peer& peer) {
    peer.full = false;
    if (peer.next_send == peer.sends.size()) return false;
    Sending& sending = peer.sends[peer.next_send];
    const auto body = outgoing(peer, sending);
    const auto head = std::as_bytes(std::span(&header_, 1)).subspan(peer.header_sent);
    const std::array<iovec, 2> ranges = {iovec{const_cast<std::byte*>(head.data()), head.size()},
                                         iovec{const_cast<std::byte*>(body.data()), body.size()}};
    const size_t total = head.size() + body.size();
    const size_t moved = total == 0 ? 0 : peer.link->try_send(ranges);
    peer.full = moved < total;
    const size_t of_header = std::min(moved, head.size());
    peer.header_sent += of_header;
    peer.sent += moved - of_header;
    if (!wire_dtype_) {
      sending.range.at += peer.sent / size_;
      peer.sent %= size_;
    } else if (peer.converted > 0 && peer.sent == peer.converted * wire_size_) {
      sending.range.at += peer.converted;
      peer.converted = peer.sent = 0;
    }
    if (!sending.range.done() || peer.header_sent < sizeof(Header)) return moved > 0;
    ++peer.next_send;
    return true;
  }

  bool receive_some(Peer& peer) {
    peer.stuck = false;
    if (peer.next_receive == peer.receives.size()) return false;
    if (peer.header_received < sizeof(Header)) return receive_header(peer);
    Group& group = groups_[peer.receives[peer.next_receive]];
    if (group.range.done()) {  // an empty block
      ++peer.next_receive;
      return true;
    }
    if (group.action == Action::kOverwrite && !wire_dtype_) return receive_in_place(peer, group);
    auto& buffer = peer.scratch->incoming;
    buffer.resize(std::max(buffer.size(), segment_ * wire_size_));
    const size_t wanted = std::min(group.range.end - group.range.at, segment_) * wire_size_;
    const iovec range = {buffer.data() + peer.received, wanted - peer.received};
    peer.stuck = range.iov_len == 0;
    const size_t moved = peer.stuck ? 0 : peer.link->try_receive({&range, 1});
    peer.received += moved;
    return apply(group) || moved > 0;
  }

  bool receive_header(Peer& peer) {
    const auto rest = std::as_writable_bytes(std::span(&peer.header, 1)).subspan(peer.header_received);
    const iovec range = {rest.data(), rest.size()};
    const size_t moved = peer.link->try_receive({&range, 1});
    peer.header_received += moved;
    if (peer.header_received == sizeof(Header) && peer.header != header_) {
      context_.error.fail(
          GroupError::Kind::kMismatch,
          peer.header.magic != Header::kMagic
              ? context_.describe(peer.rank) + " sent something else than an operation"
              : fmt::format("{} called {} (number {}), {} called {}{}", context_.describe(options_.rank),
                            context_.called.to_string(), context_.number, context_.describe(peer.rank),
                            peer.header.describe(context_.called, options_.rank),
                            peer.header.wire_dtype != header_.wire_dtype ? ", with another --wire" : ""),
          context_.during());
    }
    return moved > 0;
  }

  bool receive_in_place(Peer& peer, Group& group) {
    const size_t limit = write_limit(group);
    const size_t room = std::min((limit - group.range.at) * size_, options_.segment);
    peer.stuck = room <= peer.received;
    if (peer.stuck) return false;
    const iovec range = {to_ + group.range.at * size_ + peer.received, room - peer.received};
    const size_t moved = peer.link->try_receive({&range, 1});
    peer.received += moved;
    group.range.at += peer.received / size_;
    peer.received %= size_;
    if (group.range.done()) ++peer.next_receive;
    return moved > 0;
  }

  // Reduces, or converts, what all peers of the group have sent.
  bool apply(Group& group) {
    size_t ready = write_limit(group) - group.range.at;
    for (const size_t index : group.peers) {
      const Peer& peer = peers_[index];
      const bool at_it = peer.next_receive < peer.receives.size() && peer.header_received == sizeof(Header) &&
                         &groups_[peer.receives[peer.next_receive]] == &group;
      ready = std::min(ready, at_it ? peer.received / wire_size_ : 0);
    }
    if (ready == 0) return false;
    void* const own = to_ + group.range.at * size_;
    if (group.action == Action::kOverwrite) {
      convert(*wire_dtype_, peers_[group.peers.front()].scratch->incoming.data(), operation_.dtype, own,
              ready);
    } else {
      reduce(group, own, ready);
    }
    group.range.at += ready;
    for (const size_t index : group.peers) {
      Peer& peer = peers_[index];
      peer.received -= ready * wire_size_;
      auto* buffer = peer.scratch->incoming.data();
      memmove(buffer, buffer + ready * wire_size_, peer.received);
      if (group.range.done()) ++peer.next_receive;
    }
    return true;
  }

  void reduce(const Group& group, void* own, size_t count) {
    sources_.clear();
    bool own_is_in = false;
    for (const size_t index : group.peers) {
      Peer& peer = peers_[index];
      if (!own_is_in && peer.rank > options_.rank) {
        sources_.push_back(own);
        own_is_in = true;
      }
      if (wire_dtype_) {
        peer.scratch->widened.resize(segment_);
        convert(*wire_dtype_, peer.scratch->incoming.data(), operation_.dtype, peer.scratch->widened.data(),
                count);
        sources_.push_back(peer.scratch->widened.data());
      } else {
        sources_.push_back(peer.scratch->incoming.data());
      }
    }
    if (!own_is_in) sources_.push_back(own);
    const bool divide = group.final && operation_.op == ReduceOp::kAverage;
    kernels().reduce({.dtype = operation_.dtype,
                      .op = operation_.op,
                      .divisor = divide ? static_cast<int>(context_.ranks.size()) : 1},
                     sources_, {&own, 1}, count);
    if (!wire_dtype_ || !group.final) return;
    // What others get of this is rounded, so it must be here too.
    void* const rounded = peers_[group.peers.front()].scratch->widened.data();
    convert(operation_.dtype, own, *wire_dtype_, rounded, count);
    convert(*wire_dtype_, rounded, operation_.dtype, own, count);
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (const auto& peer : peers_) {
      if (peer.next_receive < peer.receives.size()) ranks.push_back(peer.rank);
    }
    if (!ranks.empty()) return ranks;
    for (const auto& peer : peers_) {
      if (peer.next_send < peer.sends.size()) ranks.push_back(peer.rank);
    }
    return ranks;
  }

  bool has_connection(int rank) const {
    return std::ranges::any_of(
        peers_, [rank](const auto& peer) { return peer.rank == rank && peer.link->receive_fd() >= 0; });
  }

  // Nothing could be moved: spin, then yield, then sleep until a socket is ready or a peer rings the
  // doorbell.
  void wait(int idle) {
    // A fruitless round costs system calls, as long as some twenty pauses.
    const int spins = options_.spin_policy.spins / 20;
    if (idle <= spins) return spin_pause();
    if (idle <= spins + options_.spin_policy.yields / 4) return std::this_thread::yield();
    context_.check([this] { return missing(); }, [this](int rank) { return has_connection(rank); });
    std::vector<pollfd> waits = {{.fd = options_.wake_fd, .events = POLLIN, .revents = 0}};
    bool by_doorbell = false;
    const auto add_wait = [&](int fd, short events) {
      if (fd < 0) by_doorbell = true;
      if (fd >= 0) waits.push_back({.fd = fd, .events = events, .revents = 0});
    };
    for (const auto& peer : peers_) {
      if (peer.next_receive < peer.receives.size() && !peer.stuck) add_wait(peer.link->receive_fd(), POLLIN);
      if (peer.full) add_wait(peer.link->send_fd(), POLLOUT);
    }
    if (by_doorbell && !armed_) {  // ask to be woken, and look once more before sleeping
      armed_ = true;
      options_.doorbell->sleeping.exchange(1);
      return;
    }
    armed_ = false;
    if (waits.size() == 1 && by_doorbell) return sleep_on(*options_.doorbell);
    poll(waits.data(), waits.size(), by_doorbell ? 1 : 50);
  }

  const Options& options_;
  const OperationContext& context_;
  const Operation& operation_;
  const std::optional<DType> wire_dtype_;
  const Header header_;
  const size_t size_;
  const size_t wire_size_;
  const size_t segment_;  // elements
  const bool in_place_;
  const std::byte* const from_;
  std::byte* const to_;
  std::vector<Peer> peers_;
  std::vector<Group> groups_;
  size_t first_open_ = 0;  // groups before it are done
  std::vector<const void*> sources_;
  bool armed_ = false;
};

void LinkExecutor::run(const OperationContext& context, const Stage& stage, const BlockLayout& layout,
                       const void* from, void* to) {
  Run(*this, context, stage, layout, from, to).run();
}

}  // namespace muster::detail
