#pragma once

// Graphs in files, for Graph::save and Graph::load, which say more.

#include <string>

#include "muster/graph.h"

namespace muster::detail {

void save_graph(const Graph& graph, const std::string& file);
Graph load_graph(const std::string& file);

}  // namespace muster::detail
