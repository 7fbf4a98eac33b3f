#include "muster/collective/named_sums.h"

#include <cstring>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/collective/gather_texts.h"

namespace muster::detail {

// One after the other: a name, a zero byte, the bytes of the number.
std::string pack_sums(const std::map<std::string, double>& sums) {
  std::string packed;
  for (const auto& [name, value] : sums) {
    if (name.find('\0') != std::string::npos)
      throw InvalidArgument(fmt::format("the name of a sum has a zero byte, after '{}'", name.c_str()));
    packed += name;
    packed += '\0';
    packed.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return packed;
}

std::map<std::string, double> add_packed(const std::vector<std::string>& packed) {
  std::map<std::string, double> sums;
  for (const auto& text : packed) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.find('\0', at);
      double value = 0;
      if (end == std::string::npos || text.size() - end - 1 < sizeof(value))
        throw InvalidArgument("a worker brought something else than sums");
      memcpy(&value, text.data() + end + 1, sizeof(value));
      sums[text.substr(at, end - at)] += value;
      at = end + 1 + sizeof(value);
    }
  }
  return sums;
}

std::map<std::string, double> add_up(Communicator& communicator, const std::string& call,
                                     const std::map<std::string, double>& mine) {
  return add_packed(gather_texts(communicator, call, pack_sums(mine)));
}

}  // namespace muster::detail
