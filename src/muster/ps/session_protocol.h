#pragma once

// What goes over the connections between workers and servers. A connection begins with a Hello and a Welcome;
// between tasks of one host that share memory nothing follows, and its end says that the other has died.
// Between hosts, frames follow:
//
//   worker -> server   kSlice: the gradient of one slice; kRequest: what a SessionSlot carries; kPull
//   server -> worker   kReply; kParameters: all slices of one version, then whether it is whole: else they
//                      come again
//
// All numbers are little-endian, as the machines are.

#include <cstdint>
#include <string>

#include "muster/net/connection.h"
#include "muster/ps/session_slot.h"

namespace muster::detail {

constexpr uint32_t kSessionProtocolVersion = 5;

struct Hello {
  uint32_t version = kSessionProtocolVersion;
  uint32_t shares_memory = 0;
  uint64_t spec = 0;  ///< ModelSpec::fingerprint()
  int32_t worker = 0;
  int32_t incarnation = 0;
  uint64_t slot = 0;     ///< where it is in the arena that follows
  uint32_t sockets = 1;  ///< of this link; the others come by the channel socket_channel_name()
  uint32_t link = 0;     ///< tells links of a worker apart
};

struct Welcome {
  uint32_t refused = 0;  ///< bytes of the reason, which follows; 0: welcome
  uint32_t initialised = 0;
  uint64_t instance = 0;  ///< of the server: another after a restart
  uint64_t store = 0;     ///< where the StoreView is in the arena that follows
  uint64_t doorbell = 0;  ///< where the Doorbell is in the other arena that follows
  uint64_t posted = 0;    ///< requests of this worker that the server has
  uint64_t answered = 0;  ///< and has answered
};

struct Frame {
  enum class Kind : uint32_t { kSlice, kRequest, kPull, kReply, kParameters, kWhole };
  Kind kind = Kind::kSlice;
  uint32_t index = 0;  ///< kSlice: which; kWhole: 1 when it is
  uint64_t number =
      0;  ///< kSlice: the sequence; kRequest and kReply: of the request; kPull, kWhole: the version
  uint64_t bytes = 0;  ///< that follow
};

/// How waits name a model: WaitFor::subject.
std::string model_subject(const std::string& model_id);

std::string worker_channel_name(const std::string& job_id, const std::string& model_id);
std::string command_channel_name(const std::string& job_id, const std::string& model_id);
std::string sum_channel_name(const std::string& job_id, const std::string& model_id);
std::string socket_channel_name(const std::string& job_id, const std::string& model_id, const Hello& hello,
                                uint32_t socket);

/// Tells the other side why not; what it reads then is the end.
void refuse(Connection& connection, const std::string& reason);

/// Reads a Welcome. Throws Refused with the reason.
Welcome receive_welcome(Connection& connection, Deadline deadline);

}  // namespace muster::detail
