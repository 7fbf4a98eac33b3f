#include "bench/driver/kind.h"

#include "bench/driver/numbers.h"

namespace muster::detail::bench {

std::optional<double> Series::median_of(const std::string& part) const {
  std::vector<double> values;
  for (const auto& sample : samples) {
    if (const auto found = sample.parts.find(part); found != sample.parts.end())
      values.push_back(found->second);
  }
  return values.empty() ? std::nullopt : std::optional(percentile(values, 0.5));
}

Result summarise(const Series& series) {
  std::vector<double> times;
  for (const auto& sample : series.samples) times.push_back(sample.us);
  return {.of = series.of,
          .median_us = percentile(times, 0.5),
          .p10_us = percentile(times, 0.1),
          .p90_us = percentile(times, 0.9),
          .verified = series.verified,
          .repeated_us = series.median_of("repeated")};
}

}  // namespace muster::detail::bench
