#include "bench/train/plot.h"

#include <algorithm>

#include <fmt/format.h>

#include "bench/driver/svg.h"

namespace muster::detail::bench::train {
namespace {

constexpr size_t kColumns = 2;
constexpr double kPanelWidth = 600;
constexpr double kLeft = 170;
constexpr double kRight = 520;  // the longest bar ends here; its number stands behind it
constexpr double kTop = 48;
constexpr double kBarStep = 24;
constexpr double kBarHeight = 16;
constexpr double kBelow = 20;

double panel_height(const Point& point) {
  return kTop + kBarStep * static_cast<double>(point.results.size()) + kBelow;
}

std::string bar(const Result& result, double y, double scale) {
  const double middle = y + kBarHeight / 2;
  const auto place = [&](double rate) { return kLeft + rate * scale; };
  std::string svg = fmt::format(
      "<text class=\"tick\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}, {} {}</text>", kLeft - 8,
      middle + 4, svg_escape(result.subject), result.workers, result.workers == 1 ? "worker" : "workers");
  svg += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"/>", kLeft, y,
                     result.samples_per_s * scale, kBarHeight, colour_of(result.subject));
  svg += fmt::format("<line stroke=\"#212529\" x1=\"{0:.1f}\" y1=\"{2:.1f}\" x2=\"{1:.1f}\" y2=\"{2:.1f}\"/>",
                     place(result.p10), place(result.p90), middle);
  svg += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\">{:.0f}</text>\n",
                     place(std::max(result.samples_per_s, result.p90)) + 6, middle + 4, result.samples_per_s);
  return svg;
}

std::string panel(const Point& point) {
  double most = 0;
  for (const auto& result : point.results) most = std::max({most, result.samples_per_s, result.p90});
  std::string svg = fmt::format("<text class=\"title\" x=\"16\" y=\"28\">{}, {}: samples/s</text>\n",
                                svg_escape(point.model.title), svg_escape(point.optimizer));
  double y = kTop;
  for (const auto& result : point.results) {
    svg += bar(result, y, (kRight - kLeft) / most);
    y += kBarStep;
  }
  return svg;
}

}  // namespace

std::string plot_svg(const std::vector<Point>& points) {
  std::string svg;
  double top = 0;
  for (size_t begin = 0; begin < points.size(); begin += kColumns) {
    double height = 0;
    for (size_t i = begin; i < std::min(begin + kColumns, points.size()); ++i) {
      svg += fmt::format("<g transform=\"translate({} {})\">\n{}</g>\n",
                         kPanelWidth * static_cast<double>(i - begin), top, panel(points[i]));
      height = std::max(height, panel_height(points[i]));
    }
    top += height;
  }
  const auto columns = static_cast<double>(std::min(kColumns, std::max<size_t>(points.size(), 1)));
  return svg_document(kPanelWidth * columns, top, svg);
}

}  // namespace muster::detail::bench::train
