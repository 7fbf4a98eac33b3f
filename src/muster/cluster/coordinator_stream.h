#pragma once

// The coordinator's control streams (control_stream.h). Internal to the room: it includes generated code.

#include "muster/cluster/control_stream.h"
#include "muster/cluster/coordinator.pb.h"

namespace muster::proto {
class CoordinatorService;
}

namespace muster::detail {

struct CoordinatorProtocol {
  using FromClient = proto::FromMember;
  using FromServer = proto::FromCoordinator;
  using Service = proto::CoordinatorService;
  static constexpr const char* kServer = "the coordinator";
  static constexpr int kMaxFromClient = 64 << 20;
  static constexpr int kMaxFromServer = 64 << 20;
};

using CoordinatorStreamServer = ControlStreamServer<CoordinatorProtocol>;
using CoordinatorStreamClient = ControlStreamClient<CoordinatorProtocol>;

}  // namespace muster::detail
