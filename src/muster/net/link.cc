#include "muster/net/link.h"

#include <algorithm>
#include <array>

namespace muster::detail {
namespace {

constexpr size_t kTurn = size_t{256} * 1024;
constexpr size_t kMostPartsCut = 4;

}  // namespace

template <typename Transfer>
size_t TcpLink::in_turn(Cursor& cursor, std::span<const iovec> parts, const Transfer& transfer) {
  if (connections_.size() == 1) return transfer(connections_.front(), parts);
  // Both sides cut the stream at the same offsets: every kTurn bytes the next connection has its turn.
  std::array<iovec, kMostPartsCut> cut{};
  size_t count = 0;
  size_t room = kTurn - cursor.used;
  for (const auto& part : parts) {
    if (room == 0 || count == kMostPartsCut) break;
    cut[count] = part;
    cut[count].iov_len = std::min(part.iov_len, room);
    room -= cut[count++].iov_len;
  }
  const size_t moved = transfer(connections_[cursor.index], std::span<const iovec>(cut.data(), count));
  cursor.used += moved;
  if (cursor.used == kTurn) cursor = {.index = (cursor.index + 1) % connections_.size(), .used = 0};
  return moved;
}

void TcpLink::end() {
  for (auto& connection : connections_) connection.end();
}

size_t TcpLink::try_send(std::span<const iovec> parts) {
  return in_turn(sending_, parts, [](Connection& connection, auto cut) { return connection.try_send(cut); });
}

size_t TcpLink::try_receive(std::span<const iovec> parts) {
  return in_turn(receiving_, parts,
                 [](Connection& connection, auto cut) { return connection.try_receive(cut); });
}

}  // namespace muster::detail
