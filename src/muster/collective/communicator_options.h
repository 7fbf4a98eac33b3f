#pragma once

// How a Communicator (muster/communicator.h) is made.
//
//   Communicator comm({.rank = 0, .size = 2, .rendezvous = rendezvous, .endpoint = endpoint});
//
// A value; what it points to is shared with the communicator.

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/wait_registry.h"
#include "muster/collective/engine.h"
#include "muster/collective/operation.h"
#include "muster/collective/rendezvous.h"
#include "muster/communicator.h"
#include "muster/net/endpoint.h"

namespace muster {

struct Communicator::Options {
  int rank = 0;
  int size = 1;
  std::string name = "world";     ///< for messages and to tell groups apart
  std::string engine = "native";  ///< native, mpi or gloo
  detail::Rendezvous rendezvous;  ///< how the ranks find each other; not needed by a group of one
  std::shared_ptr<detail::Endpoint> endpoint;  ///< this task's data port, shared with whoever else needs it
  detail::Algorithm algorithm = detail::Algorithm::kAuto;
  bool shared_memory = true;
  std::optional<DType> wire_dtype;  ///< fp16 or bf16: what fp32 sums travel as between hosts
  int sockets = 1;                  ///< connections for each pair of hosts' ranks
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};  ///< of an operation without a deadline
  std::chrono::milliseconds stall_warning{std::chrono::seconds(10)};
  std::chrono::milliseconds rendezvous_timeout{std::chrono::minutes(1)};
  detail::WaitRegistry* waits = nullptr;  ///< where ranks that are waited for are told of; outlives it
  std::vector<std::string> tasks;         ///< the name of each rank's task there
  std::function<void()> check;            ///< called now and then while ranks connect, and may throw
  std::string host_identity;  ///< empty: this host's; tests put ranks of one machine on several "hosts"
  size_t arena_capacity = 0;  ///< 0: as much as the machine has memory
  size_t segment = 0;         ///< bytes that move at once; 0: as measured. Tests shrink it
};

}  // namespace muster
