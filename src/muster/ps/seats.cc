#include "muster/ps/seats.h"

#include <algorithm>

#include "muster/base/error.h"

namespace muster {

void Seats::add(std::shared_ptr<Seat> seat) {
  const int worker = seat->worker;
  MUSTER_CHECK(seats_.try_emplace(worker, std::move(seat)).second);
}

std::shared_ptr<Seat> Seats::remove(int worker) {
  const auto found = seats_.find(worker);
  if (found == seats_.end()) return nullptr;
  auto seat = std::move(found->second);
  seats_.erase(found);
  left_.insert_or_assign(worker, seat->incarnation);
  if (!seat->data.empty()) estates_.push_back(seat);
  return seat;
}

Seat* Seats::find(int worker) const {
  const auto found = seats_.find(worker);
  return found == seats_.end() ? nullptr : found->second.get();
}

Seat* Seats::holder_of(const Source& source) const {
  const auto has = [&](const Seat& seat) {
    return seat.worker == source.worker && seat.incarnation == source.incarnation &&
           seat.data.contains(source.sequence);
  };
  Seat* const seat = find(source.worker);
  if (seat != nullptr && has(*seat)) return seat;
  const auto estate =
      std::find_if(estates_.begin(), estates_.end(), [&](const auto& entry) { return has(*entry); });
  return estate == estates_.end() ? nullptr : estate->get();
}

bool Seats::is_gone(const Source& source) const {
  if (const Seat* seat = find(source.worker); seat != nullptr) return seat->incarnation > source.incarnation;
  const auto left = left_.find(source.worker);
  return left != left_.end() && left->second >= source.incarnation;
}

bool Seats::are_ready(const Order& order) const {
  return std::all_of(order.sources.begin(), order.sources.end(), [this](const Source& source) {
    return holder_of(source) != nullptr || is_gone(source);
  });
}

void Seats::release(const Order& order) {
  for (const auto& source : order.sources) {
    Seat* seat = holder_of(source);
    if (seat == nullptr) continue;
    seat->data.erase(source.sequence);
    seat->desk->consumed.exchange(source.sequence);
    wake(seat->desk->bell);
  }
  // What an earlier incarnation left is not asked for once a later one is.
  std::erase_if(estates_, [&](const auto& estate) {
    return estate->data.empty() ||
           std::any_of(order.sources.begin(), order.sources.end(), [&](const Source& source) {
             return source.worker == estate->worker && source.incarnation > estate->incarnation;
           });
  });
}

}  // namespace muster
