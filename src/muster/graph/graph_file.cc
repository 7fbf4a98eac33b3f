#include "muster/graph/graph_file.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <utility>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/random.h"
#include "muster/base/replace_file.h"
#include "muster/graph/graph_proto.h"

namespace muster::detail {

namespace {

// Of what begins the file with the large constants: who reads "model.pb.tensors" knows what it is.
constexpr std::string_view kMagic = "MUSTER-TENSORS-1";

// Behind it comes what the graph beside it says too, so that no other one is taken for it.
constexpr size_t kIdBytes = 16;

std::string tensors_file(const std::string& file) {
  return file + ".tensors";
}

[[noreturn]] void raise_system(const std::string& what, const std::string& file) {
  raise<SystemError>("{} '{}': {}", what, file, describe_errno(errno));
}

}  // namespace

void save_graph(const Graph& graph, const std::string& file) {
  SavedGraph saved = to_proto(graph);
  if (!saved.tensors.empty()) saved.proto.set_tensors_id(random_bytes(kIdBytes));
  if (saved.tensors.empty()) {
    std::error_code ignored;
    std::filesystem::remove(tensors_file(file), ignored);
  } else {
    replace_file(tensors_file(file), [&saved](std::ostream& stream) {
      stream.write(kMagic.data(), static_cast<std::streamsize>(kMagic.size()));
      stream.write(saved.proto.tensors_id().data(), kIdBytes);
      for (const auto& tensor : saved.tensors)
        stream.write(static_cast<const char*>(tensor.data_ptr()),
                     static_cast<std::streamsize>(tensor.nbytes()));
    });
  }
  replace_file(file, [&saved](std::ostream& stream) {
    if (!saved.proto.SerializeToOstream(&stream)) stream.setstate(std::ios::failbit);
  });
}

Graph load_graph(const std::string& file) {
  google::protobuf::Arena arena;
  graph::GraphProto& proto = make_proto(arena);
  {
    std::ifstream stream(file, std::ios::binary);
    if (!stream) raise_system("can't read", file);
    if (!proto.ParseFromIstream(&stream)) raise<DataLoss>("'{}' is no graph of Muster's, or truncated", file);
  }
  auto tensors = empty_tensors(proto);
  if (!tensors.empty()) {
    std::ifstream stream(tensors_file(file), std::ios::binary);
    if (!stream) raise_system("can't read", tensors_file(file));
    std::string magic(kMagic.size(), '\0');
    stream.read(magic.data(), static_cast<std::streamsize>(magic.size()));
    if (magic != kMagic) raise<DataLoss>("'{}' does not hold the constants of a graph", tensors_file(file));
    std::string id(kIdBytes, '\0');
    stream.read(id.data(), kIdBytes);
    if (stream && id != proto.tensors_id())
      raise<DataLoss>("'{}' holds the constants of another graph than '{}'", tensors_file(file), file);
    for (const auto& tensor : tensors) {
      stream.read(static_cast<char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
      if (!stream) raise<DataLoss>("'{}' is truncated: a constant is missing", tensors_file(file));
    }
  }
  return from_proto(proto, tensors);
}

}  // namespace muster::detail
