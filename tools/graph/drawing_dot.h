#pragma once

// A drawing in the language of Graphviz, and laid out by it.

#include <cstdint>
#include <optional>
#include <string>

#include "graph/drawing.h"

namespace muster::detail {

/// Places are colours, with a legend; scopes are frames; what goes from place to place has its bytes, for a
/// batch where it is given. A pure function.
std::string dot_source(const Drawing& drawing, std::optional<int64_t> batch);

/// An SVG of a source that dot_source() made. Throws SystemError where Graphviz can't do it. To be called
/// from one thread.
std::string svg_of(const std::string& dot);

}  // namespace muster::detail
