#include "muster/adopted_processes.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "muster/base/task_name.h"
#include "muster/base/text.h"

namespace muster::detail {
namespace {

std::string text_of(pid_t process, const char* file) {
  std::ifstream in(fmt::format("/proc/{}/{}", process, file), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Of a process that lives; its name, which may have any characters, stands in brackets before it.
bool is_our_child(pid_t process) {
  const std::string stat = text_of(process, "stat");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return false;
  const auto words = split(stat.substr(name_end + 1), ' ');  // "", state, parent, ...
  return words.size() > 2 && words[1] != "Z" && words[2] == std::to_string(getpid());
}

std::string task_of(pid_t process) {
  const auto task = Environment::of_process(process).get("MUSTER_TASK");
  if (!task) return "";
  try {
    const auto name = TaskName::parse(*task);
    return name.job && name.task ? name.short_name() : "";
  } catch (const InvalidArgument&) {
    return "";  // its own doing
  }
}

}  // namespace

AdoptedProcesses::AdoptedProcesses(std::function<bool(pid_t)> is_ours) : is_ours_(std::move(is_ours)) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

// One of our own that has ended, and that nobody has looked at yet, hides the others until somebody does.
void AdoptedProcesses::reap() const {
  for (;;) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0) return;
    if (info.si_pid == 0 || is_ours_(info.si_pid)) return;
    waitpid(info.si_pid, nullptr, 0);
  }
}

std::vector<AdoptedProcesses::Process> AdoptedProcesses::living() const {
  std::vector<Process> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const auto number = parse_integer(entry.path().filename().string());
    if (!number) continue;
    const auto pid = static_cast<pid_t>(*number);
    if (!is_our_child(pid) || is_ours_(pid)) continue;
    std::string name = text_of(pid, "comm");
    name.resize(name.find_last_not_of('\n') + 1);
    found.push_back({.pid = pid, .name = std::move(name), .task = task_of(pid)});
  }
  return found;
}

}  // namespace muster::detail
