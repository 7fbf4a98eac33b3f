#include "bench/driver/svg.h"

#include <map>

#include <fmt/format.h>

namespace muster::detail::bench {
namespace {

constexpr const char* kStyle =
    "<style>text{font-family:sans-serif;font-size:13px;fill:#212529}.title{font-size:16px;font-weight:bold}"
    ".tick{font-size:12px;fill:#495057}.grid{stroke:#e9ecef}.frame{stroke:#868e96;fill:none}"
    "polyline{fill:none;stroke-linejoin:round}</style>\n";

}  // namespace

std::string svg_document(double width, double height, const std::string& body) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n{2}{3}</svg>\n",
      width, height, kStyle, body);
}

std::string svg_escape(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

const char* colour_of(const std::string& subject) {
  static const std::map<std::string, const char*> colours = {
      {"muster", "#c2255c"}, {"baseline", "#f783ac"}, {"gloo", "#2b8a3e"}, {"openmpi", "#1971c2"},
      {"mpich", "#e8590c"},  {"floor", "#868e96"},    {"ddp", "#1971c2"},  {"ddp-installed", "#74c0fc"},
      {"loop", "#2b8a3e"},   {"alone", "#868e96"}};
  const auto found = colours.find(subject);
  return found != colours.end() ? found->second : "#7048e8";
}

}  // namespace muster::detail::bench
