#include "graph/drawing_dot.h"

#include <array>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <graphviz/gvc.h>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {

namespace {

// Fills that dark text is read on, and that can be told apart side by side; after them they repeat.
constexpr std::array kColours = {"#cfe2f3", "#fce5cd", "#d9ead3", "#e6dcf0", "#fff2cc",
                                 "#d0e9e6", "#f4d7dc", "#e3e0d3", "#dfe6a8", "#c9d3e8"};
constexpr size_t kMostForCurves = 100;
constexpr const char* kNoPlace = "#ffffff";
constexpr const char* kFrame = "#b7b7b7";
constexpr const char* kText = "#222222";
constexpr const char* kFaint = "#666666";
constexpr const char* kLine = "#8a8a8a";
constexpr const char* kCrossing = "#b0413e";
constexpr const char* kControl = "#c8c8c8";
constexpr const char* kCrossingControl = "#dfbcba";

// For labels that are written as HTML.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : printable(text)) {
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : printable(text)) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

const char* shape_of(BoxKind kind) {
  switch (kind) {
    case BoxKind::kVariable:
      return "shape=cylinder";
    case BoxKind::kPlaceholder:
      return "shape=hexagon, margin=\"0.0,0.02\"";
    case BoxKind::kConstant:
      return "shape=note";
    case BoxKind::kSeveral:
      return "shape=box, peripheries=2, style=\"filled\"";
    case BoxKind::kOperator:
      break;
  }
  return "shape=box, style=\"filled,rounded\"";
}

// A scope, what is in it, and how many boxes that are in all.
struct ScopeTree {
  std::map<std::string, ScopeTree> inner;  // by their whole names
  std::vector<size_t> boxes;
  size_t count = 0;
};

class DotWriter {
 public:
  DotWriter(const Drawing& drawing, std::optional<int64_t> batch) : drawing_(drawing), batch_(batch) {}

  std::string write() {
    text_ = fmt::format(
        "digraph muster {{\n"
        "  graph [rankdir=TB, newrank=true, nslimit=2, nslimit1=2, ranksep=0.35, nodesep=0.25, "
        "fontname=\"Helvetica,Arial,sans-serif\", "
        "fontsize=11,\n"
        "         fontcolor=\"{}\", pad=0.2, labelloc=t, labeljust=l, label=<{}>]\n"
        "  node [fontname=\"Helvetica,Arial,sans-serif\", fontsize=11, style=filled, color=\"{}\", "
        "fontcolor=\"{}\",\n"
        "        margin=\"0.1,0.03\", height=0.3]\n"
        "  edge [fontname=\"Helvetica,Arial,sans-serif\", fontsize=9, color=\"{}\", arrowsize=0.6]\n",
        kText, legend(), kLine, kText, kLine);
    // Ways around boxes take Graphviz very long for many lines that go far: these are straight, and behind.
    if (drawing_.boxes.size() > kMostForCurves) text_ += "  graph [splines=line, outputorder=edgesfirst]\n";
    ScopeTree root;
    for (size_t i = 0; i < drawing_.boxes.size(); ++i) insert(root, i);
    write_scope(root, 0, 1);
    for (const auto& line : drawing_.lines) write_line(line);
    keep_scopes_below_what_they_take();
    return text_ + "}\n";
  }

 private:
  std::string colour_of(size_t place) const {
    return drawing_.places[place].empty() ? kNoPlace : kColours[place % kColours.size()];
  }

  // The colours, in rows of a few, and below them what shapes and lines mean, as far as they occur.
  std::string legend() const {
    constexpr size_t kColumns = 6;
    std::string rows;
    std::string row;
    for (size_t i = 0; i < drawing_.places.size() && drawing_.shows_places(); ++i) {
      const std::string& place = drawing_.places[i];
      row += fmt::format("<td bgcolor=\"{}\" border=\"1\" color=\"{}\" cellpadding=\"4\">{}</td>",
                         colour_of(i), kLine, escaped(place.empty() ? drawing_.no_place : place));
      if ((i + 1) % kColumns == 0 || i + 1 == drawing_.places.size()) {
        rows += legend_row(fmt::format("<table border=\"0\" cellspacing=\"4\"><tr>{}</tr></table>", row));
        row.clear();
      }
    }
    rows += legend_row(meaning_of_shapes());
    return fmt::format("<table border=\"0\" cellspacing=\"0\">{}</table>", rows);
  }

  static std::string legend_row(const std::string& content) {
    return fmt::format("<tr><td align=\"left\">{}</td></tr>", content);
  }

  std::string meaning_of_shapes() const {
    std::map<BoxKind, size_t> kinds;
    for (const auto& box : drawing_.boxes) ++kinds[box.kind];
    bool has_control = false;
    bool has_crossing = false;
    for (const auto& line : drawing_.lines) {
      has_control = has_control || line.is_control;
      has_crossing = has_crossing || line.crosses;
    }
    std::vector<std::string> parts;
    if (kinds.contains(BoxKind::kVariable)) parts.emplace_back("cylinder: variable");
    if (kinds.contains(BoxKind::kPlaceholder)) parts.emplace_back("hexagon: placeholder");
    if (kinds.contains(BoxKind::kConstant)) parts.emplace_back("dog-ear: constant");
    if (kinds.contains(BoxKind::kSeveral)) parts.emplace_back("double frame: several nodes");
    if (has_control) parts.emplace_back("dashed: runs after");
    if (has_crossing) parts.emplace_back("red: goes to another task");
    parts.insert(parts.begin(), fmt::format("{} nodes", drawing_.nodes));
    std::string cells;
    for (const auto& part : parts)
      cells += fmt::format("<td><font color=\"{}\" point-size=\"10\">{}</font></td>", kFaint, part);
    return fmt::format("<table border=\"0\" cellspacing=\"10\"><tr>{}</tr></table>", cells);
  }

  void insert(ScopeTree& root, size_t number) {
    const DrawnBox& box = drawing_.boxes[number];
    ScopeTree* tree = &root;
    ++tree->count;
    for (const size_t end : scope_ends(box.name)) {
      if (end > box.scope) break;
      tree = &tree->inner[box.name.substr(0, end)];
      ++tree->count;
    }
    tree->boxes.push_back(number);
  }

  // `outer` is how much of the names is said by the frames around.
  void write_scope(const ScopeTree& tree, size_t outer, int indent) {
    const std::string blanks(static_cast<size_t>(indent) * 2, ' ');
    for (const size_t box : tree.boxes) write_box(box, outer, blanks);
    for (const auto& [name, inner] : tree.inner) {
      const bool has_one_part = inner.boxes.empty() && inner.inner.size() == 1;
      if (inner.count == 1 || has_one_part) {
        write_scope(inner, outer, indent);
        continue;
      }
      text_ += fmt::format(
          "{0}subgraph {1} {{\n{0}  graph [label=<<font color=\"{2}\">{3}</font>>, color=\"{4}\", "
          "style=rounded]\n",
          blanks, quoted(fmt::format("cluster_{}", name)), kFaint, escaped(name.substr(outer)), kFrame);
      write_scope(inner, name.size() + 1, indent + 1);
      text_ += blanks + "}\n";
    }
  }

  void write_box(size_t number, size_t outer, const std::string& blanks) {
    const DrawnBox& box = drawing_.boxes[number];
    std::string rows = fmt::format("<tr><td><b>{}</b></td></tr>", escaped(box.name.substr(outer)));
    for (const auto& line : split(box.detail, '\n')) {
      if (!line.empty())
        rows += fmt::format("<tr><td><font point-size=\"9\" color=\"{}\">{}</font></td></tr>", kFaint,
                            escaped(line));
    }
    const std::string label =
        fmt::format("<table border=\"0\" cellspacing=\"0\" cellpadding=\"1\">{}</table>", rows);
    const std::string& place = drawing_.places[box.place];
    text_ += fmt::format("{}n{} [{}, fillcolor=\"{}\", label=<{}>, tooltip={}]\n", blanks, number,
                         shape_of(box.kind), colour_of(box.place), label,
                         quoted(place.empty() ? box.name : box.name + " on " + place));
  }

  void write_line(const DrawnLine& line) {
    std::vector<std::string> attributes;
    if (line.is_control) {
      attributes.push_back(
          fmt::format("style=dashed, color=\"{}\"", line.crosses ? kCrossingControl : kControl));
    } else if (line.crosses) {
      attributes.push_back(fmt::format("color=\"{0}\", fontcolor=\"{0}\", label=\" {1} \"", kCrossing,
                                       line.bytes.to_string(batch_)));
    }
    attributes.push_back("tooltip=" + quoted(fmt::format("{} to {}", drawing_.boxes[line.from].name,
                                                         drawing_.boxes[line.to].name)));
    text_ += fmt::format("  n{} -> n{} [{}]\n", line.from, line.to, fmt::join(attributes, ", "));
  }

  // What nobody gives anything to, as a variable, would stand high above the only box that takes it, and its
  // scope would begin up there. Lines that are not seen keep it below what that box takes of other scopes.
  void keep_scopes_below_what_they_take() {
    std::vector<std::vector<const DrawnLine*>> into(drawing_.boxes.size());
    std::vector<size_t> takers(drawing_.boxes.size(), 0);
    for (const auto& line : drawing_.lines) {
      into[line.to].push_back(&line);
      if (!line.is_control) ++takers[line.from];
    }
    const auto scope_of = [this](size_t box) {
      return std::string_view(drawing_.boxes[box].name).substr(0, drawing_.boxes[box].scope);
    };
    for (size_t box = 0; box < drawing_.boxes.size(); ++box) {
      for (const auto* source : into[box]) {
        const size_t beside = source->from;
        if (!into[beside].empty() || takers[beside] != 1 || scope_of(beside) != scope_of(box)) continue;
        for (const auto* above : into[box]) {
          if (!above->is_control && scope_of(above->from) != scope_of(box))
            text_ += fmt::format("  n{} -> n{} [style=invis]\n", above->from, beside);
        }
      }
    }
  }

  const Drawing& drawing_;
  const std::optional<int64_t> batch_;
  std::string text_;
};

}  // namespace

std::string dot_source(const Drawing& drawing, std::optional<int64_t> batch) {
  return DotWriter(drawing, batch).write();
}

std::string svg_of(const std::string& dot) {
  const std::unique_ptr<GVC_t, int (*)(GVC_t*)> context(gvContext(), gvFreeContext);
  agseterr(AGERR);
  const std::unique_ptr<Agraph_t, int (*)(Agraph_t*)> graph(agmemread(dot.c_str()), agclose);
  if (!graph) raise<SystemError>("Graphviz can't read the drawing");
  if (gvLayout(context.get(), graph.get(), "dot") != 0)
    raise<SystemError>("Graphviz can't lay out the drawing: are its plugins installed (Debian's libgvc6)?");
  char* data = nullptr;
  unsigned int length = 0;
  const int code = gvRenderData(context.get(), graph.get(), "svg", &data, &length);
  std::string svg;
  if (code == 0) svg.assign(data, length);
  gvFreeRenderData(data);
  gvFreeLayout(context.get(), graph.get());
  if (code != 0)
    raise<SystemError>("Graphviz can't draw an SVG: are its plugins installed (Debian's libgvc6)?");
  return svg;
}

}  // namespace muster::detail
