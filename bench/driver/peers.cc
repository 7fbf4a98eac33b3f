#include "bench/driver/peers.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/text.h"
#include "muster/cluster/identity.h"
#include "muster/deadline.h"
#include "muster/task_process.h"

namespace muster::detail::bench {
namespace {

using namespace std::chrono_literals;

constexpr const char* kAllocator = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4";
constexpr auto kTimeForPython = 20s;

bool runs(const std::string& python, const std::string& text) {
  try {
    TaskProcess process(
        {.program = python, .arguments = {python, "-c", text}, .environment = Environment::of_process()});
    const auto deadline = Deadline::after(kTimeForPython);
    while (!process.reap() && !deadline.expired()) std::this_thread::sleep_for(5ms);
    return process.exit() && process.exit()->ok();
  } catch (const SystemError&) {
    return false;
  }
}

bool has_torch(const std::string& python) {
  return runs(python, "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)");
}

}  // namespace

const char* const kNoTorch =
    "can't run: no python3 here has torch. Install python3-torch (scripts/bootstrap)";

Surroundings Surroundings::of_process() {
  Surroundings surroundings = {.environment = Environment::of_process(),
                               .programs = std::filesystem::read_symlink("/proc/self/exe").parent_path()};
  forget_launchers(surroundings.environment);
  return surroundings;
}

std::string Surroundings::search_path() const {
  return environment.get("PATH").value_or("/usr/bin:/bin");
}

std::string Surroundings::why_not(const std::string& name) const {
  if (has(name)) return "";
  return fmt::format("is not built: there is no {} in {} (scripts/build release)", name, programs.string());
}

std::vector<std::string> choose_from(const std::vector<PeerState>& peers,
                                     const std::vector<std::string>& named) {
  std::vector<std::string> chosen;
  std::vector<std::string> known;
  for (const auto& peer : peers) {
    known.push_back(peer.name);
    if (named.empty() && peer.missing.empty()) chosen.push_back(peer.name);
  }
  for (const auto& name : named) {
    check_is_one_of("--peers", name, known);
    const auto peer =
        std::find_if(peers.begin(), peers.end(), [&](const PeerState& each) { return each.name == name; });
    if (!peer->missing.empty()) raise<InvalidArgument>("--peers: {} {}", name, peer->missing);
    if (std::find(chosen.begin(), chosen.end(), name) == chosen.end()) chosen.push_back(name);
  }
  return chosen;
}

void check_is_one_of(const std::string& what, const std::string& value,
                     const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) == known.end())
    raise<InvalidArgument>("{}: '{}' is not one of {}{}", what, value, fmt::join(known, ", "),
                           suggestion(value, known));
}

void check_is_built(const std::filesystem::path& folder, const std::string& program) {
  if (!std::filesystem::exists(folder / program))
    raise<InvalidArgument>("{} is not in {}: build it (scripts/build release)", program, folder.string());
}

std::string find_torch_python(const std::vector<std::string>& candidates) {
  const auto found = std::find_if(candidates.begin(), candidates.end(), [](const std::string& each) {
    return std::filesystem::exists(each) && has_torch(each);
  });
  return found != candidates.end() ? *found : "";
}

bool can_import(const std::string& python, const std::string& module, const std::string& name) {
  return runs(python, fmt::format("from {} import {}", module, name));
}

std::string why_not_torch_rpc(const std::string& python) {
  if (python.empty()) return kNoTorch;
  if (!can_import(python, "torch.distributed.rpc", "TensorPipeAgent"))
    return fmt::format("can't run: the torch of {} is built without TensorPipe", python);
  return "";
}

std::vector<std::string> python_candidates(const std::string& search_path) {
  std::vector<std::string> candidates = {"/usr/bin/python3"};
  for (const auto& folder : split(search_path, ':')) {
    const std::string path = std::filesystem::path(folder) / "python3";
    if (!folder.empty() && std::find(candidates.begin(), candidates.end(), path) == candidates.end())
      candidates.push_back(path);
  }
  return candidates;
}

std::string find_allocator() {
  return std::filesystem::exists(kAllocator) ? kAllocator : "";
}

}  // namespace muster::detail::bench
