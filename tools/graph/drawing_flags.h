#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/drawing.h"

namespace CLI {
class App;
}

namespace muster::detail {

/// The flags that `muster graph show` and `muster graph place` have in common: whether and how a graph is
/// drawn, and for which batch sizes are given.
class DrawingFlags {
 public:
  explicit DrawingFlags(CLI::App& command);

  /// Whether a drawing is asked for. Throws InvalidArgument where flags of drawings are given without one.
  bool asked_for() const;
  const std::optional<int64_t>& batch() const { return batch_; }

  /// Draws the nodes as asked for; those without a place are called `no_place`. Says on standard error when
  /// nodes share boxes and nobody asked for that. Throws SystemError where the drawing, or its file, can't be
  /// written.
  void draw(const std::vector<PlacedNode>& nodes, const std::string& no_place) const;

  /// Writes to the file of -o, or to standard output. Throws SystemError.
  void write(const std::string& text) const;

 private:
  bool svg_ = false;
  bool dot_ = false;
  std::string file_;
  std::optional<size_t> depth_;
  bool without_gradients_ = false;
  std::optional<int64_t> batch_;
};

}  // namespace muster::detail
