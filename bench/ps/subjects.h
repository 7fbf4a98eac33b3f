#pragma once

// The table of what `muster bench ps` compares: the cases, the subjects, and by which command line each is
// started. Pure, but for the question what is installed.
//
//   muster       a parameter server that updates by SGD, and its clients, under `muster run`
//   grpc-unary   gRPC, a call for the push and one for the pull; the server only keeps the bytes
//   grpc-stream  the same through one stream for ever
//   torch-rpc    PyTorch's RPC over TensorPipe; the server only keeps the tensor
//   floor        no peer: what the memory alone would allow, in one process
//
// With the transport shm, gRPC has Unix sockets, the fastest it has on one host. Peers send all variables of
// a server together: with a message for each of a thousand, gRPC's stream took two to four times as long,
// and PyTorch's RPC, with a list of tensors, 7 (tcp) to 19 times (shm).
//
// While TensorPipe has shared memory, its threads spin: torch-rpc is stopped between its turns.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/driver/peers.h"
#include "bench/driver/subject.h"

namespace muster::detail::bench::ps {

/// What is measured at one time.
struct Case {
  std::string transport;  ///< "shm" or "tcp"
  int workers = 1;
  int servers = 1;
  int variables = 1;
  int64_t bytes = 0;  ///< of one variable

  bool operator==(const Case&) const = default;
};

/// "shm, 2 workers, 1 server"
std::string describe(const Case& of);

const std::vector<std::string>& transports();

struct Choice {
  std::vector<std::string> transports;
  std::vector<int> workers;
  std::vector<int> servers;
  std::vector<int> variables;
  std::vector<int64_t> sizes;  ///< of one variable; are rounded up to whole elements
};

/// Several variables are measured with 4 KiB each only, and then one of 4 MiB too, to be compared with a
/// thousand. In the order of transports, workers, servers, bytes of all variables.
std::vector<Case> cases(const Choice& choice);

struct Settings {
  std::vector<std::string> peers;       ///< as choose_from() gives them
  std::filesystem::path programs;       ///< the folder of muster and the peers
  std::filesystem::path baseline = {};  ///< the same of another build; empty: none
  std::string python;                   ///< that has torch
  std::string allocator;                ///< a library that is loaded before torch-rpc's; empty: none
};

/// Muster first, the peers, the floor.
std::vector<SubjectCommand> subjects(const Settings& settings, const Case& of);

/// grpc-unary, grpc-stream and torch-rpc, for choose_from(). `python` is empty when there is none with torch.
std::vector<PeerState> peers(const Surroundings& surroundings, const std::string& python);

}  // namespace muster::detail::bench::ps
