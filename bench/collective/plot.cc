#include "bench/collective/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "bench/driver/numbers.h"
#include "bench/driver/svg.h"

namespace muster::detail::bench::collective {
namespace {

constexpr double kWidth = 1000;
constexpr double kPanelHeight = 440;
constexpr double kLeft = 90;
constexpr double kRight = 660;
constexpr double kTop = 50;
constexpr double kBottom = 380;
constexpr double kLegendLine = 22;
constexpr int kMostSizeLabels = 8;
constexpr std::array kDashes = {"", "7 3", "2 3", "9 3 2 3", "4 4"};

/// From a logarithm to a position on the page.
struct Axis {
  double low = 0;
  double high = 1;
  double begin = 0;
  double end = 0;

  double position(double logarithm) const { return begin + (logarithm - low) / (high - low) * (end - begin); }
};

struct Line {
  Variant of;
  const char* dash;
  std::vector<std::pair<double, double>>
      points;  // logarithms: of the bytes to base 2, of the value to base 10
};

class Panel {
 public:
  Panel(const std::string& collective, PlotValue value, const std::vector<Point>& points)
      : value_(value), title_(fmt::format("{}, {} ranks", collective, points.front().ranks)) {
    for (const auto& point : points) {
      for (const auto& result : point.results) {
        const double bandwidth =
            static_cast<double>(point.bytes) * bus_factor(collective, point.ranks) / result.median_us / 1e3;
        const double y = value == PlotValue::kTime ? result.median_us : bandwidth;
        if (result.verified && y > 0)
          line_of(result.of).points.emplace_back(std::log2(static_cast<double>(point.bytes)), std::log10(y));
      }
    }
    x_ = range([](const auto& point) { return point.first; });
    x_.begin = kLeft;
    x_.end = kRight;
    y_ = range([](const auto& point) { return point.second; });
    y_.begin = kBottom;
    y_.end = kTop;
  }

  std::string draw() const {
    std::string svg =
        fmt::format("<text class=\"title\" x=\"{}\" y=\"28\">{}</text>\n", kLeft, svg_escape(title_));
    svg += size_grid() + value_grid();
    svg += fmt::format("<rect class=\"frame\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", kLeft, kTop,
                       kRight - kLeft, kBottom - kTop);
    for (size_t i = 0; i < lines_.size(); ++i) svg += draw_line(lines_[i]) + legend(lines_[i], i);
    return svg;
  }

 private:
  Line& line_of(const Variant& of) {
    const auto found =
        std::find_if(lines_.begin(), lines_.end(), [&](const Line& line) { return line.of == of; });
    if (found != lines_.end()) return *found;
    const auto earlier = std::count_if(lines_.begin(), lines_.end(),
                                       [&](const Line& line) { return line.of.subject == of.subject; });
    lines_.push_back(
        {.of = of, .dash = kDashes.at(static_cast<size_t>(earlier) % kDashes.size()), .points = {}});
    return lines_.back();
  }

  // Whole numbers around all points, at least one apart.
  template <typename Coordinate>
  Axis range(Coordinate coordinate) const {
    Axis axis = {.low = INFINITY, .high = -INFINITY};
    for (const auto& line : lines_) {
      for (const auto& point : line.points) {
        axis.low = std::min(axis.low, std::floor(coordinate(point)));
        axis.high = std::max(axis.high, std::ceil(coordinate(point)));
      }
    }
    if (lines_.empty()) return {.low = 0, .high = 1};
    if (axis.high == axis.low) axis.high += 1;
    return axis;
  }

  std::string size_grid() const {
    std::string svg;
    const auto last = static_cast<int>(x_.high);
    const int step = (last - static_cast<int>(x_.low) + kMostSizeLabels - 1) / kMostSizeLabels;
    for (auto power = static_cast<int>(x_.low); power <= last; power += step) {
      const double x = x_.position(power);
      svg += fmt::format("<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\"/>", x,
                         kTop, kBottom);
      svg += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x,
                         kBottom + 18, format_size(int64_t{1} << power));
    }
    return svg + fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">bytes</text>\n",
                             (kLeft + kRight) / 2, kBottom + 40);
  }

  std::string value_grid() const {
    std::string svg;
    for (auto power = static_cast<int>(y_.low); power <= static_cast<int>(y_.high); ++power) {
      for (const int step : {1, 2, 5}) {
        const double y = y_.position(power + std::log10(step));
        if (y < kTop - 0.1) continue;
        svg += fmt::format("<line class=\"grid\" x1=\"{1}\" y1=\"{0:.1f}\" x2=\"{2}\" y2=\"{0:.1f}\"/>", y,
                           kLeft, kRight);
        if (step == 1)
          svg += fmt::format("<text class=\"tick\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
                             kLeft - 8, y + 4, label(power));
      }
    }
    const char* title =
        value_ == PlotValue::kTime ? "time (lower is better)" : "bus bandwidth (higher is better)";
    return svg +
           fmt::format("<text transform=\"translate(18 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                       (kTop + kBottom) / 2, title);
  }

  // 1, 10 or 100 of the unit of each third power of ten, from 10^-6 of the base unit.
  std::string label(int power) const {
    static constexpr std::array kTimes = {"ps", "ns", "µs", "ms", "s"};
    static constexpr std::array kBandwidths = {"kB/s", "MB/s", "GB/s", "TB/s", "PB/s"};
    const double third = std::clamp(std::floor(power / 3.0), -2.0, 2.0);
    const auto& units = value_ == PlotValue::kTime ? kTimes : kBandwidths;
    return fmt::format("{:g} {}", std::pow(10, power - 3 * third), units.at(static_cast<size_t>(third + 2)));
  }

  static std::string stroke(const Line& line) {
    return fmt::format("stroke=\"{}\" stroke-width=\"{}\" stroke-dasharray=\"{}\"",
                       colour_of(line.of.subject), line.of.subject == "muster" ? 2.6 : 1.6, line.dash);
  }

  std::string draw_line(const Line& line) const {
    std::string points;
    std::string dots;
    for (const auto& [bytes, y] : line.points) {
      points += fmt::format("{:.1f},{:.1f} ", x_.position(bytes), y_.position(y));
      dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.2\" fill=\"{}\"/>", x_.position(bytes),
                          y_.position(y), colour_of(line.of.subject));
    }
    return fmt::format("<polyline {} points=\"{}\"/>{}\n", stroke(line), points, dots);
  }

  static std::string legend(const Line& line, size_t index) {
    const double y = kTop + 10 + kLegendLine * static_cast<double>(index);
    return fmt::format(
        "<line {} x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/><text x=\"{}\" y=\"{}\">{}</text>\n", stroke(line),
        kRight + 16, y, kRight + 46, y, kRight + 54, y + 4,
        svg_escape(fmt::format("{}: {}", line.of.subject, line.of.variant)));
  }

  const PlotValue value_;
  const std::string title_;
  std::vector<Line> lines_;
  Axis x_;
  Axis y_;
};

}  // namespace

std::string plot_svg(const std::string& collective, PlotValue value, const std::vector<Point>& points) {
  std::map<int, std::vector<Point>> by_ranks;
  for (const auto& point : points) by_ranks[point.ranks].push_back(point);
  std::string svg;
  double top = 0;
  for (const auto& [ranks, some] : by_ranks) {
    svg += fmt::format("<g transform=\"translate(0 {})\">\n{}</g>\n", top,
                       Panel(collective, value, some).draw());
    top += kPanelHeight;
  }
  return svg_document(kWidth, top, svg);
}

}  // namespace muster::detail::bench::collective
