#pragma once

// The coordinator's protocol, as both ends of a control stream need it: its version, conversions to and
// from the generated messages, and what is proved in the handshake. Internal to the room: it includes
// generated code.

#include <string>

#include "muster/base/wait_registry.h"
#include "muster/cluster/coordinator.pb.h"
#include "muster/cluster/task_info.h"

namespace muster::detail {

/// Changes whenever two builds could not understand each other.
constexpr int kProtocolVersion = 5;

proto::Task to_proto(const TaskName& name);
TaskName from_proto(const proto::Task& task);
proto::TaskInfo to_proto(const TaskInfo& info);
TaskInfo from_proto(const proto::TaskInfo& info);
proto::Wait to_proto(const Wait& wait);

/// What `role` ("member" or "coordinator") proves the secret over: job, task and both nonces. The role keeps
/// one side's proof from serving as the other's.
std::string challenge_text(const char* role, const proto::Hello& hello, const std::string& coordinator_nonce);

}  // namespace muster::detail
