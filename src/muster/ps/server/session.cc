#include "muster/ps/server/session.h"

#include "muster/base/error.h"

namespace muster::detail {

ShardUpdate::SliceData gradients_of(const Session& session, const FlatLayout& layout) {
  ShardUpdate::SliceData gradients(layout.size(), nullptr);
  for (size_t i = 0; i < layout.size(); ++i) {
    const uint64_t offset = session.slot->offsets()[i];
    if (offset == 0) continue;
    if ((offset & (size_of(layout[i].dtype) - 1)) != 0 || offset > session.capacity ||
        session.capacity - offset < layout.bytes(i))
      raise<InvalidArgument>("it says that its gradient of {} lies where none can", layout[i].name);
    gradients[i] = session.base + offset;
  }
  return gradients;
}

}  // namespace muster::detail
