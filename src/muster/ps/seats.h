#pragma once

// The workers' places at a server, and the gradients that they have pushed.
//
// Seats belongs to the one thread that works on the server's store. A Seat is made by a thread of the
// Reception, which hands it over through the Inbox: until then it is that thread's, afterwards the working
// thread's, but for what is constant (worker, incarnation, where the desk is), which the Reception and its
// watch go on reading. Nothing here blocks.

#include <map>
#include <memory>
#include <vector>

#include "muster/net/arena.h"
#include "muster/ps/desk.h"
#include "muster/ps/parameter_store.h"
#include "muster/ps/remote_worker.h"

namespace muster {

struct Seat {
  int worker = 0;
  int incarnation = 0;
  Desk* desk = nullptr;
  const std::byte* base = nullptr;  ///< of its places
  size_t capacity = 0;
  std::shared_ptr<Arena> arena;          ///< on this host; or
  std::shared_ptr<RemoteWorker> remote;  ///< on another
  uint64_t seen = 0;                     ///< requests
  uint64_t pushed = 0;                   ///< the last sequence
  std::map<uint64_t, SliceData> data;    ///< of pushes that have not been used up, by sequence
};

class Seats {
 public:
  const std::map<int, std::shared_ptr<Seat>>& all() const { return seats_; }

  /// The worker must have none.
  void add(std::shared_ptr<Seat> seat);

  /// Gives the seat, if there was one. What its worker pushed before still counts.
  std::shared_ptr<Seat> remove(int worker);

  Seat* find(int worker) const;

  /// The seat that has these gradients, be its worker still there or not; nullptr when nobody has.
  Seat* holder_of(const Source& source) const;

  /// Whether all gradients of an order are there, or will not come any more. On the servers that follow, an
  /// order may come before the gradients that it is about.
  bool are_ready(const Order& order) const;

  /// Gradients of an order have been used: their memory is the worker's again.
  void release(const Order& order);

 private:
  bool is_gone(const Source& source) const;

  std::map<int, std::shared_ptr<Seat>> seats_;
  std::vector<std::shared_ptr<Seat>> estates_;  // of workers that are gone, with gradients that are not used
  std::map<int, int> left_;                     // the last incarnation of workers that are gone
};

}  // namespace muster
