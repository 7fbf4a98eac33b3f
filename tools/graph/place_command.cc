#include "graph/place_command.h"

#include <algorithm>
#include <string>
#include <vector>

#include "graph/drawing_flags.h"
#include "graph/placed_graph.h"
#include <CLI/CLI.hpp>

#include "muster/graph.h"

namespace muster::detail {

struct PlaceCommand::Impl {
  explicit Impl(CLI::App& parent)
      : app(parent.add_subcommand(
            "place",
            "which task of a cluster would run which node of a graph, and what goes from task to task")),
        drawing(*app) {}

  CLI::App* app;
  std::string file;
  PlaceRequest request;
  bool json = false;
  DrawingFlags drawing;
};

PlaceCommand::PlaceCommand(CLI::App& parent) : impl_(std::make_unique<Impl>(parent)) {
  auto& app = *impl_->app;
  app.add_option("graph", impl_->file, "the file: model.pb")->required();
  app.add_option("--cluster", impl_->request.cluster,
                 "the tasks, as muster server takes them: ps=h1:2222;worker=h2:2222,h3:2222")
      ->required();
  app.add_option("--fetch", impl_->request.fetches,
                 "an output that a run gives: loss:0; may be given several times")
      ->expected(1)
      ->take_all();
  app.add_option("--target", impl_->request.targets,
                 "a node that a run is for: train; may be given several times")
      ->expected(1)
      ->take_all();
  app.add_option("--session-task", impl_->request.session_task,
                 "the task that the session is connected to: worker/0; default: the first");
  app.add_flag("--soft-placement", impl_->request.soft_placement,
               "a device that the cluster does not have is left out of account");
  app.add_flag("--json", impl_->json, "print all of it as JSON")->excludes("--svg")->excludes("--dot");
  app.footer(
      "Nothing is run, and nobody is connected to. Without --fetch and --target, all nodes are placed.\n"
      "Placeholders are fed.\n\n"
      "  muster graph place model.pb --cluster 'ps=h1:2222;worker=h2:2222' --target train --batch 64");
}

PlaceCommand::~PlaceCommand() = default;

bool PlaceCommand::chosen() const {
  return impl_->app->parsed();
}

int PlaceCommand::run() const {
  const Graph graph = Graph::load(impl_->file);
  const PlacedGraph placed(graph, impl_->request);
  if (impl_->drawing.asked_for()) {
    std::vector<PlacedNode> nodes;
    for (const auto& [feed, tasks] : placed.feeds()) nodes.push_back({feed.get(), ""});
    for (const auto* node : placed.nodes())
      nodes.push_back({node, placed.tasks()[placed.task(*node)].short_name()});
    std::sort(nodes.begin(), nodes.end(),
              [](const PlacedNode& a, const PlacedNode& b) { return a.node->id < b.node->id; });
    impl_->drawing.draw(nodes, "fed");
    return 0;
  }
  const auto& batch = impl_->drawing.batch();
  impl_->drawing.write(impl_->json ? placed.to_json(batch) : placed.to_text(batch));
  return 0;
}

}  // namespace muster::detail
