#include "muster/collective/engine_loader.h"

#include <dlfcn.h>

#include <filesystem>
#include <map>
#include <string_view>

#include <fmt/ranges.h>

#include "muster/base/error.h"
#include "muster/base/text.h"

namespace muster::detail {
namespace {

// What each engine needs to be built.
const std::map<std::string, std::string> kNeeds = {{"gloo", "libgloo-dev and libtorch-dev"},
                                                   {"mpi", "libopenmpi-dev"}};

// The module's handle; nullptr when it is not in this folder.
void* open(const std::string& name, const std::string& file, const std::string& folder) {
  const std::string path = folder.empty() ? file : (std::filesystem::path(folder) / file).string();
  if (!folder.empty() && !std::filesystem::exists(path)) return nullptr;
  if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
  const std::string error = dlerror();
  if (folder.empty() && error.starts_with(file + ":")) return nullptr;
  raise<InvalidArgument>("the engine '{}' can't be loaded: {}", name, error);
}

[[noreturn]] void not_found(const std::string& name, const std::string& file,
                            const std::vector<std::string>& folders) {
  const auto needs = kNeeds.find(name);
  if (needs == kNeeds.end()) {
    raise<InvalidArgument>("there is no engine '{}': native, mpi and gloo are there{}", name,
                           suggestion(name, {"native", "mpi", "gloo"}));
  }
  std::vector<std::string> places;
  for (const auto& folder : folders) places.push_back(folder.empty() ? "the system's search path" : folder);
  raise<InvalidArgument>(
      "the engine '{}' was not found: {} is not in {}. Link muster::muster, which knows its folder, or name "
      "that "
      "in LD_LIBRARY_PATH; if Muster was built without it, install {} and build again",
      name, file, fmt::join(places, ", "), needs->second);
}

}  // namespace

std::vector<std::string> engine_folders() {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return {folder, folder.parent_path() / "lib", MUSTER_INSTALL_LIBDIR, ""};
}

std::unique_ptr<Engine> load_engine(const Communicator::Options& options, GroupState& state,
                                    const std::vector<std::string>& folders) {
  const std::string& name = options.engine;
  const std::string file = fmt::format("libmuster_engine_{}.so", name);
  void* handle = nullptr;
  for (const auto& folder : folders) {
    handle = open(name, file, folder);
    if (handle != nullptr) break;
  }
  if (handle == nullptr) not_found(name, file, folders);
  auto* const exported = reinterpret_cast<const EngineModule* (*)()>(dlsym(handle, "muster_engine_module"));
  if (exported == nullptr) raise<InvalidArgument>("{} is not an engine of Muster", file);
  const EngineModule* const module = exported();
  if (std::string_view(module->version) != MUSTER_VERSION) {
    raise<InvalidArgument>("the engine '{}' is of Muster {}, this program of {}: install both again", name,
                           module->version, MUSTER_VERSION);
  }
  return module->make(options, state);
}

}  // namespace muster::detail
