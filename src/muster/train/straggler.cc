#include "muster/train/straggler.h"

#include "muster/base/config.h"
#include "muster/base/error.h"

namespace muster::detail {

double straggler_factor(const std::string& setting, const TaskName& task) {
  if (setting.empty()) return 1;
  const auto factors = parse_slow(setting);
  if (!factors) raise<InvalidArgument>("--slow {} is not like worker/1:3x", setting);
  const auto found = factors->find(task.short_name());
  return found == factors->end() ? 1 : found->second;
}

}  // namespace muster::detail
