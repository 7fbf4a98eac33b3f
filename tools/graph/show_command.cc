#include "graph/show_command.h"

#include <string>
#include <vector>

#include "graph/drawing_flags.h"
#include "graph/value_bytes.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "muster/graph.h"
#include "muster/graph/placer.h"

namespace muster::detail {

struct ShowCommand::Impl {
  explicit Impl(CLI::App& parent)
      : app(parent.add_subcommand("show",
                                  "the nodes of a graph that Graph::save() wrote, or a drawing of them")),
        drawing(*app) {}

  CLI::App* app;
  std::string file;
  DrawingFlags drawing;
};

ShowCommand::ShowCommand(CLI::App& parent) : impl_(std::make_unique<Impl>(parent)) {
  impl_->app->add_option("graph", impl_->file, "the file: model.pb")->required();
  impl_->app->footer(
      "  muster graph show model.pb\n"
      "  muster graph show model.pb --svg --without-gradients -o model.svg");
}

ShowCommand::~ShowCommand() = default;

bool ShowCommand::chosen() const {
  return impl_->app->parsed();
}

namespace {

// "loss: (aten::mean): /job:worker: float32 [] <- relu:0, ^init"
std::string line_of(const GraphNode& node, PlacingNodes& placing_nodes) {
  std::vector<std::string> results;
  for (const auto& output : node.outputs) results.push_back(describe(output));
  std::vector<std::string> inputs;
  node.each_input([&](const Output& input) { inputs.push_back(input.name()); });
  for (size_t i = 0; i < node.arguments.size(); ++i) {
    if (node.op->writes(i)) inputs.push_back("&" + node.arguments[i].outputs().front().get()->name);
  }
  for (const auto* before : node.control) inputs.push_back("^" + before->name);
  const std::string& device = placing_nodes.of(node).device;
  std::string line =
      fmt::format("{}: ({}): {}", node.name, node.op->name(), device.empty() ? "any device" : device);
  if (!results.empty()) line += fmt::format(": {}", fmt::join(results, ", "));
  if (!inputs.empty()) line += fmt::format(" <- {}", fmt::join(inputs, ", "));
  return printable(line) + "\n";
}

}  // namespace

int ShowCommand::run() const {
  const Graph graph = Graph::load(impl_->file);
  PlacingNodes placing_nodes;
  if (impl_->drawing.asked_for()) {
    std::vector<PlacedNode> nodes;
    for (const auto& node : graph.data().nodes) nodes.push_back({&node, placing_nodes.of(node).device});
    impl_->drawing.draw(nodes, "any device");
    return 0;
  }
  std::string text;
  for (const auto& node : graph.data().nodes) text += line_of(node, placing_nodes);
  impl_->drawing.write(text);
  return 0;
}

}  // namespace muster::detail
