#include "muster/train/straggler.h"

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {

double straggler_factor(const std::string& setting, const TaskName& task) {
  double found = 1;
  if (setting.empty()) return found;
  for (const auto& entry : split(setting, ',')) {
    const size_t colon = entry.rfind(':');
    const auto factor = colon == std::string::npos || !entry.ends_with('x')
                            ? std::nullopt
                            : parse_real(std::string_view(entry).substr(colon + 1, entry.size() - colon - 2));
    if (!factor || *factor < 1)
      raise<InvalidArgument>("--slow {}: {} is not like worker/1:3x", setting, entry);
    if (entry.substr(0, colon) == task.short_name()) found = *factor;
  }
  return found;
}

}  // namespace muster::detail
