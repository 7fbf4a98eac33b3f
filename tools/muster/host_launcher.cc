#include "muster/host_launcher.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include <fmt/ranges.h>

#include "muster/base/error.h"
#include "muster/base/text.h"
#include "muster/find_program.h"
#include "muster/launcher_input.h"
#include "muster/net/address.h"
#include "muster/net/host.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;

constexpr auto kReminderInterval = 3s;

std::string quoted(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : " ") + shell_quoted(word);
  return text;
}

std::vector<std::string> names_of(const std::vector<HostEntry>& hosts) {
  std::vector<std::string> names;
  for (const auto& host : hosts) names.push_back(host.name);
  return names;
}

}  // namespace

HostLauncher::HostLauncher(Options options)
    : options_(std::move(options)), muster_(std::filesystem::read_symlink("/proc/self/exe")) {
  const auto& hosts = options_.hosts;
  const bool all_loopback =
      std::ranges::all_of(hosts, [](const HostEntry& host) { return is_loopback(host.address()); });
  if (is_loopback(hosts.front().address()) && !all_loopback) {
    raise<InvalidArgument>(
        "--hosts: the others can't reach {} by that name: write the name or address of this host that they "
        "know",
        hosts.front().name);
  }
  const bool colours = !options_.environment.get("NO_COLOR");
  output_ = std::make_unique<TaskOutput>(
      TaskOutput::Options{.out_is_terminal = colours && isatty(STDOUT_FILENO) == 1,
                          .err_is_terminal = colours && isatty(STDERR_FILENO) == 1,
                          .tee = options_.tee},
      names_of(hosts));
}

HostLauncher::~HostLauncher() = default;

std::vector<std::string> HostLauncher::arguments_of(size_t node) const {
  const HostEntry& host = options_.hosts[node];
  std::vector<std::string> launcher = {muster_, "run", "--controlled"};
  launcher.insert(launcher.end(), options_.flags.begin(), options_.flags.end());
  for (const auto& word : {std::string("--nnodes"), std::to_string(options_.hosts.size()),
                           std::string("--node-rank"), std::to_string(node), std::string("--")})
    launcher.push_back(word);
  launcher.insert(launcher.end(), options_.command.begin(), options_.command.end());
  if (is_this_host(host)) return launcher;
  auto arguments = options_.ssh;
  arguments.push_back(host.name);
  arguments.push_back(fmt::format("cd {} && exec {}", shell_quoted(std::filesystem::current_path().string()),
                                  quoted(launcher)));
  return arguments;
}

std::vector<std::string> HostLauncher::commands() const {
  std::vector<std::string> texts;
  for (size_t node = 0; node < options_.hosts.size(); ++node) texts.push_back(quoted(arguments_of(node)));
  return texts;
}

void HostLauncher::start(size_t node) {
  const auto arguments = arguments_of(node);
  const auto search_path = options_.environment.get("PATH").value_or("/usr/bin:/bin");
  auto process = std::make_unique<TaskProcess>(
      TaskProcess::Options{.program = find_program(arguments.front(), search_path),
                           .arguments = arguments,
                           .environment = options_.environment,
                           .has_input = true});
  const std::string input = input_of_variables(options_.variables);
  if (!process->write_input(input)) {
    raise<InvalidArgument>(
        "--env: the variables for the tasks take {} bytes, more than the launchers can be told: put them in "
        "a file that the program reads",
        input.size());
  }
  nodes_.push_back({.host = options_.hosts[node].name, .process = std::move(process)});
}

int HostLauncher::run() {
  for (size_t node = 0; node < options_.hosts.size(); ++node) start(node);
  begin_until_ = Deadline::after(options_.join_timeout);
  next_reminder_ = Deadline::after(kReminderInterval);
  while (any_running()) poll_once();
  return interrupted_by_ ? 128 + *interrupted_by_ : exit_code_;
}

void HostLauncher::poll_once() {
  std::vector<pollfd> waits = {{.fd = signals_.descriptor(), .events = POLLIN, .revents = 0}};
  std::vector<std::pair<size_t, int>> sources;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    for (int stream = 0; stream < 2; ++stream) {
      if (nodes_[i].process->pipe(stream) < 0) continue;
      waits.push_back({.fd = nodes_[i].process->pipe(stream), .events = POLLIN, .revents = 0});
      sources.emplace_back(i, stream);
    }
  }
  auto next = Deadline::after(1s);
  for (const auto& deadline : {stop_at_, kill_at_}) {
    if (deadline) next = next.earlier(*deadline);
  }
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next.remaining()).count();
  poll(waits.data(), waits.size(), static_cast<int>(wait));
  for (size_t i = 0; i < sources.size(); ++i) {
    if (waits[i + 1].revents != 0) read_output(sources[i].first, sources[i].second);
  }
  read_signals();
  reap();
  check_beginnings();
  if (!signals_.outlives_readers() && !interrupted_by_ && output_->reader_is_gone()) {
    interrupted_by_ = SIGPIPE;
    stop_all();
  }
  if (stop_at_ && stop_at_->expired()) stop_all();
  if (kill_at_ && kill_at_->expired()) {
    kill_at_.reset();
    for (const auto& node : nodes_) {
      if (!node.process->running()) continue;
      output_->warn(fmt::format("the launcher on {} did not end; killing the connection", node.host));
      node.process->signal(SIGKILL);
    }
  }
}

void HostLauncher::read_signals() {
  while (const auto number = signals_.next()) {
    const bool ends = !LauncherSignals::is_for_tasks(*number);
    if (ends && !interrupted_by_) {
      output_->say(fmt::format("{}: stopping the job on {} hosts (again to kill its tasks at once)",
                               signal_name(*number), nodes_.size()));
      kill_at_ = Deadline::after(2 * options_.grace + 5s);
    }
    if (ends && interrupted_by_)
      kill_at_ = Deadline::after(2s);  // one that does not answer is not waited for
    if (ends) interrupted_by_ = *number;
    for (const auto& node : nodes_) {
      if (node.process->running()) node.process->write_input(input_of_signal(*number));
    }
  }
}

void HostLauncher::read_output(size_t node, int stream) {
  if (nodes_[node].process->read_pipe(stream, [&](std::string_view bytes) { show(node, stream, bytes); }))
    return;
  if (stream == 0) output_->write(node, 1, std::exchange(nodes_[node].unread, ""));
  output_->close(node, stream + 1);
}

// All but the line by which the launcher says that it has begun.
void HostLauncher::show(size_t node, int stream, std::string_view bytes) {
  Node& from = nodes_[node];
  if (stream != 0 || from.has_begun) return output_->write(node, stream + 1, bytes);
  from.unread += bytes;
  size_t end = from.unread.rfind('\n') + 1;
  if (const size_t found = from.unread.find(kLauncherReady); found != std::string::npos) {
    from.has_begun = true;
    from.unread.erase(found, kLauncherReady.size());
    end = from.unread.size();
  }
  output_->write(node, 1, from.unread.substr(0, end));
  from.unread.erase(0, end);
}

// From then on the launchers say themselves whom they miss.
void HostLauncher::check_beginnings() {
  if (!begin_until_ || interrupted_by_ || stopped_) return;
  std::vector<std::string> missing;
  for (const auto& node : nodes_) {
    if (!node.has_begun && node.process->running()) missing.push_back(node.host);
  }
  if (missing.empty()) {
    begin_until_.reset();
  } else if (begin_until_->expired()) {
    output_->warn(
        fmt::format("no launcher began on {} within {} (--join-timeout): does {} {} ask for something?",
                    fmt::join(missing, ", "), format_seconds(options_.join_timeout), options_.ssh.front(),
                    missing.front()));
    exit_code_ = 1;
    stop_all();
  } else if (next_reminder_.expired()) {
    next_reminder_ = Deadline::after(kReminderInterval);
    output_->say(fmt::format("still waiting for the launcher on {}, by {}", fmt::join(missing, ", "),
                             options_.ssh.front()));
  }
}

// A launcher that ends with an error has told the others, who end with their own words. One that could not be
// reached has told nobody.
void HostLauncher::reap() {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    TaskProcess& process = *nodes_[i].process;
    if (!process.running() || !process.reap()) continue;
    for (int stream = 0; stream < 2; ++stream) {
      if (process.pipe(stream) >= 0) read_output(i, stream);
    }
    const int code = process.exit()->as_exit_code();
    if (interrupted_by_ || stopped_) continue;
    if (code == 0 && !nodes_[i].has_begun) {
      output_->warn(fmt::format("{} exited with code 0 on {} without having started the launcher there",
                                options_.ssh.front(), nodes_[i].host));
      exit_code_ = 1;
      stop_at_ = Deadline::after(0ms);
      continue;
    }
    if (code == 0) {  // all have come to the end of the job: the others end, too
      if (!stop_at_) stop_at_ = Deadline::after(2 * options_.grace + 5s);
      continue;
    }
    // The launcher on the node where a task failed has its code; the others end with 1.
    if (exit_code_ <= 1) exit_code_ = code;
    const bool unreachable = code == kSshFailed && !is_this_host(options_.hosts[i]);
    if (unreachable) {
      output_->warn(fmt::format("{} can't be reached, or its connection broke ({} {})", nodes_[i].host,
                                options_.ssh.front(), process.exit()->describe()));
    }
    if (unreachable || !stop_at_) stop_at_ = Deadline::after(unreachable ? 0ms : 2 * options_.grace + 5s);
  }
}

void HostLauncher::stop_all() {
  stop_at_.reset();
  stopped_ = true;
  kill_at_ = Deadline::after(2 * options_.grace + 5s);
  for (auto& node : nodes_) node.process->close_input();
}

bool HostLauncher::any_running() const {
  return std::ranges::any_of(nodes_, [](const Node& node) { return node.process->running(); });
}

}  // namespace muster::detail
