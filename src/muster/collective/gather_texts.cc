#include "muster/collective/gather_texts.h"

#include <algorithm>

namespace muster::detail {

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

}  // namespace muster::detail
