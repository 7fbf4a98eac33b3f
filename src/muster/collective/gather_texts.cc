#include "muster/collective/gather_texts.h"

#include <algorithm>

#include "muster/base/error.h"

namespace muster::detail {

namespace {

std::vector<std::string> gather_bytes(Communicator& communicator, const std::string& mine) {
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

}  // namespace

// Each brings the call, a zero byte, and its text.
std::vector<std::string> gather_texts(Communicator& communicator, const std::string& call,
                                      const std::string& mine) {
  auto texts = gather_bytes(communicator, call + '\0' + mine);
  std::string first;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const std::string theirs = texts[rank].substr(0, texts[rank].find('\0'));
    if (rank == 0) first = theirs;
    if (theirs != first)
      raise<InvalidArgument>(
          "rank 0 is in {}, rank {} in {}: all workers must make the same calls in the same order", first,
          rank, theirs);
    texts[rank].erase(0, theirs.size() + 1);
  }
  return texts;
}

}  // namespace muster::detail
