#include "graph/drawing_flags.h"

#include <cerrno>
#include <cstdio>
#include <limits>

#include "graph/drawing_dot.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "muster/base/error.h"

namespace muster::detail {

namespace {

constexpr size_t kMuchForGraphviz = 500;
constexpr int kMostLevels = 1000;

}  // namespace

DrawingFlags::DrawingFlags(CLI::App& command) {
  auto* svg = command.add_flag("--svg", svg_, "draw it");
  command.add_flag("--dot", dot_, "print the drawing as Graphviz takes it")->excludes(svg);
  command.add_option("-o,--output", file_, "the file to write to; default: standard output");
  command
      .add_option("--depth", depth_,
                  "draw scopes below so many levels as one box each; default: as stays readable")
      ->check(CLI::Range(0, kMostLevels));
  command.add_flag("--without-gradients", without_gradients_, "leave derivatives out of the drawing");
  command.add_option("--batch", batch_, "give sizes for a batch of so many samples, instead of N")
      ->check(CLI::Range(int64_t{1}, std::numeric_limits<int64_t>::max()));
}

bool DrawingFlags::asked_for() const {
  if (!svg_ && !dot_ && (depth_ || without_gradients_))
    raise<InvalidArgument>("--depth and --without-gradients are for drawings: add --svg or --dot");
  return svg_ || dot_;
}

void DrawingFlags::draw(const std::vector<PlacedNode>& nodes, const std::string& no_place) const {
  const Drawing drawing =
      make_drawing(nodes, {.depth = depth_, .without_gradients = without_gradients_, .no_place = no_place});
  if (drawing.is_collapsed && !depth_)
    fmt::print(stderr,
               "muster: {} nodes are drawn as {} boxes: what is in scopes below level {} is one box for each "
               "scope{}; "
               "--depth says otherwise\n",
               drawing.nodes, drawing.boxes.size(), drawing.depth,
               drawing.is_folded ? ", and names that differ in numbers are one" : "");
  if (svg_ && drawing.boxes.size() > kMuchForGraphviz)
    fmt::print(stderr, "muster: {} boxes may take Graphviz minutes; a smaller --depth makes fewer\n",
               drawing.boxes.size());
  const std::string dot = dot_source(drawing, batch_);
  write(dot_ ? dot : svg_of(dot));
}

void DrawingFlags::write(const std::string& text) const {
  std::FILE* stream = file_.empty() ? stdout : std::fopen(file_.c_str(), "wb");
  if (stream == nullptr) raise<SystemError>("can't write '{}': {}", file_, describe_errno(errno));
  const bool is_written = std::fwrite(text.data(), 1, text.size(), stream) == text.size();
  const bool is_flushed = (file_.empty() ? std::fflush(stream) : std::fclose(stream)) == 0;
  if (!is_written || !is_flushed)
    raise<SystemError>("can't write {}: {}", file_.empty() ? "the output" : "'" + file_ + "'",
                       describe_errno(errno));
}

}  // namespace muster::detail
