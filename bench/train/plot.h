#pragma once

// The results of training as a picture: an SVG with a panel for each model and optimizer, and in it a bar for
// each subject and number of workers, as long as its samples/s, with a line from p10 to p90. Pure.

#include <string>
#include <vector>

#include "bench/train/report.h"

namespace muster::detail::bench::train {

std::string plot_svg(const std::vector<Point>& points);

}  // namespace muster::detail::bench::train
