#include "muster/train/gather.h"

#include <algorithm>
#include <cstring>

namespace muster {

std::vector<std::string> gather_texts(Communicator& communicator, const std::string& mine) {
  const auto ranks = static_cast<size_t>(communicator.size());
  std::vector<int64_t> sizes(ranks);
  const auto size = static_cast<int64_t>(mine.size());
  communicator.all_gather(&size, sizes.data(), 1, DType::kInt64);
  const auto room = static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end()));
  std::vector<std::string> texts(ranks);
  if (room == 0) return texts;
  std::string in = mine;
  in.resize(room);
  std::string out(room * ranks, '\0');
  communicator.all_gather(in.data(), out.data(), room, DType::kInt8);
  for (size_t i = 0; i < ranks; ++i) texts[i] = out.substr(i * room, static_cast<size_t>(sizes[i]));
  return texts;
}

// One after the other: a name, a zero byte, the bytes of the number.
std::string pack_sums(const std::map<std::string, double>& sums) {
  std::string packed;
  for (const auto& [name, value] : sums) {
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
      memcpy(&value, text.data() + end + 1, sizeof(value));
      sums[text.substr(at, end - at)] += value;
      at = end + 1 + sizeof(value);
    }
  }
  return sums;
}

std::map<std::string, double> add_up(Communicator& communicator, const std::map<std::string, double>& mine) {
  return add_packed(gather_texts(communicator, pack_sums(mine)));
}

}  // namespace muster
