#include "muster/metrics.h"

#include <fmt/format.h>

namespace muster {

std::string Metrics::to_string() const {
  const double all = total.count() > 0 ? total.count() : 1;
  std::string text = fmt::format("loss {:.4f}", loss);
  if (samples > 0) text += fmt::format("  {:.0f} samples/s", samples_per_second);
  return text + fmt::format("  compute {:.0f} %  wait {:.0f} %  update {:.0f} %", 100 * compute.count() / all,
                            100 * wait.count() / all, 100 * update.count() / all);
}

}  // namespace muster
