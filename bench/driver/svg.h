#pragma once

// What the pictures of `muster bench` have in common, as fragments of SVG. Pure.

#include <string>

namespace muster::detail::bench {

/// A document of this size with a white ground and the styles title, tick, grid and frame.
std::string svg_document(double width, double height, const std::string& body);

/// `text` as the content of an element.
std::string svg_escape(const std::string& text);

/// The same in every picture.
const char* colour_of(const std::string& subject);

}  // namespace muster::detail::bench
