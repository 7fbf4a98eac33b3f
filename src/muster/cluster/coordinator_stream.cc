#include "muster/cluster/coordinator_stream.h"

#include "muster/cluster/control_stream_impl.h"
#include "muster/cluster/coordinator.grpc.pb.h"

namespace muster::detail {

template class ControlStreamServer<CoordinatorProtocol>;
template class ControlStreamClient<CoordinatorProtocol>;

}  // namespace muster::detail
