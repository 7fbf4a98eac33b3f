#pragma once

// The results as a picture: an SVG of one panel for each number of ranks, logarithmic in both directions,
// with a line for each variant and a legend. Pure.

#include <string>
#include <vector>

#include "bench/collective/report.h"

namespace muster::detail::bench::collective {

enum class PlotValue { kTime, kBusBandwidth };

/// Wrong results are left out. There must be at least one point with a size.
std::string plot_svg(const std::string& collective, PlotValue value, const std::vector<Point>& points);

}  // namespace muster::detail::bench::collective
