#include "muster/cluster/wait_watch.h"

#include <algorithm>

#include <fmt/format.h>

namespace muster::detail {
namespace {

using namespace std::chrono_literals;

constexpr auto kLookAgainAfter = 1s;
constexpr auto kLongestGap = 1s;  // between two looks: whatever is longer was a pause
constexpr auto kToldWithin = 2s;  // a wait stands in a heartbeat by then

bool is_held_up(const proto::Wait& wait) {
  return wait.main() && wait.limit() != proto::Wait::CHOSEN;
}

// What the program has called: Muster's own barriers and keys mean nothing to it.
std::string where(const proto::Wait& wait) {
  const std::string& name = wait.barrier().empty() ? wait.key() : wait.barrier();
  const bool is_of_program = !name.empty() && !name.starts_with("muster/");
  if (wait.inside().empty()) return wait.what();
  return is_of_program ? fmt::format("{} within {}", wait.what(), wait.inside()) : wait.inside();
}

std::string list_of(const std::vector<std::string>& names) {
  if (names.size() < 2) return names.empty() ? "" : names.front();
  return fmt::format("{} and {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back());
}

}  // namespace

void WaitWatch::heard(const std::string& task, const proto::Heartbeat& heartbeat) {
  said_[task] = heartbeat;
}

// The next incarnation counts its waits from 1 again.
void WaitWatch::forget(const std::string& task) {
  const auto is_its = [&](const Id& id) { return id.first == task; };
  said_.erase(task);
  std::erase_if(begun_, [&](const auto& entry) { return is_its(entry.first); });
  std::erase_if(suspects_, [&](const auto& entry) { return is_its(entry.first); });
  std::erase_if(warned_, is_its);
}

const proto::Wait* WaitWatch::entry_of(const std::string& server, const std::string& task,
                                       const proto::Wait& wait) const {
  const auto said = said_.find(server);
  if (said == said_.end()) return nullptr;
  for (const auto& entry : said->second.waits()) {
    if (entry.of() == task && entry.subject() == wait.subject()) return &entry;
  }
  return nullptr;
}

bool WaitWatch::meets(const std::string& task, const std::string& meeting) const {
  const auto said = said_.find(task);
  if (meeting.empty() || said == said_.end()) return false;
  return std::ranges::any_of(said->second.waits(),
                             [&](const proto::Wait& wait) { return wait.meeting() == meeting; });
}

// Finds out whom the wait needs. False when it is over already, or nobody has to do anything.
bool WaitWatch::resolve(const std::string& task, const View& view, Blocked& blocked) const {
  const proto::Wait& wait = *blocked.wait;
  blocked.enough = wait.enough();
  if (!wait.barrier().empty()) {
    const auto missing = view.missing(task, wait.barrier());
    if (missing) blocked.needs = *missing;
    return missing && !missing->empty();
  }
  if (!wait.key().empty()) {
    blocked.needs = {wait.tasks().begin(), wait.tasks().end()};
    blocked.enough = 1;
    if (blocked.needs.empty()) {
      for (const auto& [other, state] : view.tasks) {
        if (other != task && state.presence != Task::Presence::kGone) blocked.needs.push_back(other);
      }
    }
    return view.waits_for_key(task, wait.key());
  }
  if (!wait.subject().empty()) {
    if (wait.tasks_size() > 0) blocked.entry = entry_of(wait.tasks(0), task, wait);
    if (blocked.entry == nullptr) {
      blocked.needs = {wait.tasks().begin(), wait.tasks().end()};
      return true;
    }
    blocked.needs = {blocked.entry->tasks().begin(), blocked.entry->tasks().end()};
    blocked.enough = blocked.entry->enough();
    return true;
  }
  for (const auto& other : wait.tasks()) {
    if (!meets(other, wait.meeting())) blocked.needs.push_back(other);
  }
  return true;
}

std::vector<WaitWatch::Blocked> WaitWatch::waits_of(const std::string& task, const View& view) const {
  std::vector<Blocked> waits;
  const auto said = said_.find(task);
  if (said == said_.end()) return waits;
  for (const auto& wait : said->second.waits()) {
    if (!wait.of().empty()) continue;
    Blocked blocked = {.wait = &wait, .age = clock_ - begun_.at({task, wait.id()})};
    if (resolve(task, view, blocked)) waits.push_back(std::move(blocked));
  }
  return waits;
}

bool WaitWatch::is_free(const Graph& graph, const std::string& task) {
  return graph.free.contains(task) || !graph.view.tasks.contains(task);
}

bool WaitWatch::can_go_on(const Graph& graph, const Blocked& blocked) {
  if (!is_held_up(*blocked.wait)) return true;
  // A server that does not say why is about to answer.
  if (!blocked.wait->subject().empty() && blocked.entry == nullptr) return true;
  const auto all = static_cast<std::ptrdiff_t>(blocked.needs.size());
  if (all == 0) return blocked.wait->key().empty();
  const auto free =
      std::ranges::count_if(blocked.needs, [&](const std::string& other) { return is_free(graph, other); });
  return free >= (blocked.enough == 0 ? all : std::min<std::ptrdiff_t>(blocked.enough, all));
}

WaitWatch::Graph WaitWatch::make_graph(const View& view) const {
  Graph graph = {.view = view, .waits = {}, .free = {}};
  for (const auto& [name, task] : view.tasks) {
    if (task.presence == Task::Presence::kHere) graph.waits[name] = waits_of(name, view);
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& [name, task] : view.tasks) {
      if (graph.free.contains(name) || task.presence == Task::Presence::kGone) continue;
      const auto goes_on = [&](const Blocked& blocked) { return can_go_on(graph, blocked); };
      if (task.presence == Task::Presence::kHere && !std::ranges::all_of(graph.waits.at(name), goes_on))
        continue;
      graph.free.insert(name);
      changed = true;
    }
  }
  return graph;
}

void WaitWatch::count_time(Time now) {
  if (last_look_) clock_ += std::min<Duration>(now - *last_look_, kLongestGap);
  last_look_ = now;
  std::map<Id, Duration> begun;
  for (const auto& [task, heartbeat] : said_) {
    for (const auto& wait : heartbeat.waits()) {
      if (!wait.of().empty()) continue;
      const Id id = {task, wait.id()};
      const auto before = begun_.find(id);
      const Duration age = std::min<Duration>(std::chrono::milliseconds(wait.age_ms()), kToldWithin);
      begun[id] = before == begun_.end() ? clock_ - age : before->second;
    }
  }
  begun_ = std::move(begun);
  std::erase_if(warned_, [this](const Id& id) { return !begun_.contains(id); });
}

WaitWatch::Findings WaitWatch::look(const View& view, Time now) {
  ++looks_;
  count_time(now);
  const Graph graph = make_graph(view);
  Findings findings;
  findings.error = find_deadlock(graph);
  if (findings.error.empty()) findings.error = find_late(graph);
  if (!findings.error.empty()) return findings;
  if (std::string warning = find_stalls(graph); !warning.empty()) findings.warnings.push_back(warning);
  if (std::string warning = find_left_behind(graph); !warning.empty()) findings.warnings.push_back(warning);
  return findings;
}

std::string WaitWatch::find_deadlock(const Graph& graph) {
  std::vector<std::string> stuck;
  bool all_confirmed = true;
  std::map<Id, Suspect> suspects;
  for (const auto& [name, waits] : graph.waits) {
    if (graph.free.contains(name)) continue;
    for (const auto& blocked : waits) {
      if (!is_held_up(*blocked.wait) || blocked.wait->limit() == proto::Wait::FOREVER) continue;
      if (graph.view.tasks.at(name).is_observer) continue;
      if (stuck.empty() || stuck.back() != name) stuck.push_back(name);
      if (!is_confirmed(name, blocked)) all_confirmed = false;
      const Id id = {name, blocked.wait->id()};
      suspects[id] = suspects_.at(id);
    }
  }
  suspects_ = std::move(suspects);
  return !stuck.empty() && all_confirmed ? describe_deadlock(graph, stuck.front()) : "";
}

// What waits for the coordinator is known here; the others must have looked again.
bool WaitWatch::is_confirmed(const std::string& task, const Blocked& blocked) {
  const proto::Wait& wait = *blocked.wait;
  const auto [found, is_new] =
      suspects_.try_emplace({task, wait.id()}, Suspect{.first = clock_, .look = looks_});
  Suspect& suspect = found->second;
  const bool asks_coordinator = !wait.barrier().empty() || !wait.key().empty();
  const bool looked = asks_coordinator || has_looked(task, wait.looks(), suspect.look, suspect.looks);
  const bool server_looked = blocked.entry == nullptr || has_looked(wait.tasks(0), blocked.entry->looks(),
                                                                    suspect.look, suspect.entry_looks);
  if (blocked.age < options_.stall_warning || clock_ - suspect.first < kLookAgainAfter) return false;
  return looked && server_looked;
}

// Whether the task has looked since it heard of that look, which it had done `first` times by then.
bool WaitWatch::has_looked(const std::string& task, uint64_t looks, uint64_t since,
                           std::optional<uint64_t>& first) const {
  if (said_.at(task).look() < since) return false;
  if (!first) first = looks;
  return looks > *first;
}

namespace {

std::string names_of(const std::vector<std::string>& needs, int enough) {
  const auto all = static_cast<int>(needs.size());
  if (enough == 0 || enough >= all) return list_of(needs);
  return fmt::format("{} of {}", enough == 1 ? "one" : std::to_string(enough), list_of(needs));
}

// "worker/0 waits in step 81 for a gradient of worker/1": all but the first two words.
std::string wait_text(const proto::Wait& wait, const proto::Wait* entry,
                      const std::vector<std::string>& needs, int enough) {
  if (entry != nullptr)
    return fmt::format("in {} for {} of {}", where(wait), entry->what(), names_of(needs, enough));
  if (!wait.key().empty() && wait.tasks().empty())
    return fmt::format("in {} for somebody to put it", where(wait));
  if (needs.empty()) return fmt::format("in {}", where(wait));
  return fmt::format("in {} for {}", where(wait), names_of(needs, enough));
}

}  // namespace

// A wait of the task's that can't go on; a server's wait for work comes last.
const WaitWatch::Blocked* WaitWatch::held_up(const Graph& graph, const std::string& task) {
  const Blocked* found = nullptr;
  for (const auto& blocked : graph.waits.at(task)) {
    if (can_go_on(graph, blocked)) continue;
    if (found == nullptr || found->wait->limit() == proto::Wait::FOREVER) found = &blocked;
  }
  return found;
}

// Follows the needs of one task until they come back to one that was named, or end at one that is gone.
std::vector<std::string> WaitWatch::chain_of(const Graph& graph, const std::string& first) {
  std::vector<std::string> chain = {first};
  for (;;) {
    const auto waits = graph.waits.find(chain.back());
    const Blocked* held = waits == graph.waits.end() ? nullptr : held_up(graph, chain.back());
    if (held == nullptr) return chain;
    std::string next;
    for (const auto& other : held->needs) {
      if (is_free(graph, other)) continue;
      if (next.empty() || next.starts_with("ps/")) next = other;
    }
    if (next.empty()) return chain;
    const auto seen = std::ranges::find(chain, next);
    if (seen != chain.end()) {
      chain.erase(chain.begin(), seen);
      return chain;
    }
    chain.push_back(next);
  }
}

std::string WaitWatch::describe_deadlock(const Graph& graph, const std::string& first) {
  std::vector<std::string> parts;
  std::string gone;
  bool evaluates = false;
  bool steps = false;
  bool barriers = true;
  std::string key;
  std::set<std::string> models;  // whose steps are waited in
  for (const auto& name : chain_of(graph, first)) {
    const Task& task = graph.view.tasks.at(name);
    if (task.presence == Task::Presence::kGone) {
      gone = fmt::format("{} {}", name, task.gone);
      continue;
    }
    const Blocked* held = held_up(graph, name);
    const proto::Wait& wait = *held->wait;
    if (wait.limit() == proto::Wait::FOREVER) continue;
    parts.push_back(
        fmt::format("{} waits {} (since {}{})", name, wait_text(wait, held->entry, held->needs, held->enough),
                    format_seconds(held->age), wait.detail().empty() ? "" : "; " + wait.detail()));
    if (!wait.key().empty() && wait.tasks().empty()) key = wait.key();
    evaluates = evaluates || wait.inside().starts_with("evaluate");
    steps = steps || wait.inside().starts_with("step ");
    if (wait.inside().starts_with("step ") && !wait.subject().empty()) models.insert(wait.subject());
    barriers = barriers && wait.inside().empty() && !wait.barrier().empty();
  }
  if (!gone.empty()) return fmt::format("{}, but {}", list_of(parts), gone);
  std::string text = fmt::format("deadlock: {}", list_of(parts));
  if (evaluates && steps)
    text +=
        ": is finish_epoch() missing before evaluate(), or is it not "
        "called by all workers?";
  if (barriers && parts.size() > 1) text += ": all tasks must come to the same barriers in the same order";
  if (models.size() > 1)
    text += fmt::format(
        ": these are steps of different Trainers, of {} in the order in which they were made: take the steps "
        "of several Trainers in the same order on all workers",
        list_of({models.begin(), models.end()}));
  if (!key.empty())
    text += fmt::format(
        ": if a thread of the program's own was about to put '{}', --stall-warning must be longer than it "
        "takes",
        key);
  return text;
}

std::string WaitWatch::find_late(const Graph& graph) const {
  for (const auto& [name, waits] : graph.waits) {
    for (const auto& blocked : waits) {
      if (blocked.wait->limit() != proto::Wait::NONE || blocked.age < options_.timeout) continue;
      if (graph.view.tasks.at(name).is_observer) continue;
      return fmt::format("{} has waited {} for {}, longer than --collective-timeout{}", name,
                         wait_text(*blocked.wait, blocked.entry, blocked.needs, blocked.enough),
                         format_seconds(blocked.age), describe_roots(graph, {name}));
    }
  }
  return "";
}

// One sentence for all that take long, also for those who came a little later; those who may be in a deadlock
// are left to that.
std::string WaitWatch::find_stalls(const Graph& graph) {
  std::map<std::string, std::vector<std::string>> who;  // by what they wait for
  std::set<std::string> waiting;
  std::set<Id> told;
  Duration longest{};
  std::string detail;
  for (const auto& [name, waits] : graph.waits) {
    for (const auto& blocked : waits) {
      const Id id = {name, blocked.wait->id()};
      if (blocked.wait->limit() == proto::Wait::FOREVER || blocked.age < options_.stall_warning / 2) continue;
      if (warned_.contains(id) || suspects_.contains(id)) continue;
      if (graph.view.tasks.at(name).is_observer) continue;
      told.insert(id);
      waiting.insert(name);
      who[wait_text(*blocked.wait, blocked.entry, blocked.needs, blocked.enough)].push_back(name);
      longest = std::max(longest, blocked.age);
      if (detail.empty()) detail = blocked.wait->detail();
    }
  }
  if (longest < options_.stall_warning) return "";
  warned_.merge(told);
  std::vector<std::string> parts;
  for (const auto& [text, names] : who)
    parts.push_back(fmt::format("{} {} {}", list_of(names), names.size() == 1 ? "waits" : "wait", text));
  return fmt::format("{} since {}{}{}", list_of(parts), format_seconds(longest),
                     detail.empty() ? "" : fmt::format(" ({})", detail), describe_roots(graph, waiting));
}

// The job goes on for workers that others have left behind: one that saves a model, or one that never ends.
std::string WaitWatch::find_left_behind(const Graph& graph) {
  std::vector<std::string> ended;
  std::vector<std::string> left;
  for (const auto& [name, task] : graph.view.tasks) {
    if (!name.starts_with("worker/") || task.is_observer) continue;
    if (task.presence == Task::Presence::kGone) ended.push_back(name);
    if (task.presence == Task::Presence::kHere && graph.waits.at(name).empty())
      left.push_back(task.description);
  }
  if (ended.empty() || left.empty()) {
    first_end_.reset();
    return "";
  }
  if (!first_end_) first_end_ = clock_;
  if (warned_of_end_ || clock_ - *first_end_ < options_.stall_warning) return "";
  warned_of_end_ = true;
  return fmt::format("{} {} ended; {} still {}, and {} for nobody", list_of(ended),
                     ended.size() == 1 ? "has" : "have", list_of(left), left.size() == 1 ? "runs" : "run",
                     left.size() == 1 ? "waits" : "wait");
}

// Whom all of these wait for in the end: those who themselves wait for nobody.
std::string WaitWatch::describe_roots(const Graph& graph, const std::set<std::string>& waiting) const {
  std::set<std::string> seen = waiting;
  std::vector<std::string> open(waiting.begin(), waiting.end());
  std::string text;
  while (!open.empty()) {
    const std::string name = open.back();
    open.pop_back();
    const auto waits = graph.waits.find(name);
    if (waits == graph.waits.end()) {
      const auto task = graph.view.tasks.find(name);
      if (task != graph.view.tasks.end() && task->second.presence == Task::Presence::kMayCome)
        text += fmt::format("; {} is not there yet", name);
      continue;
    }
    bool holds_up = !waiting.contains(name);
    for (const auto& blocked : waits->second) {
      if (blocked.wait->limit() == proto::Wait::FOREVER) continue;
      holds_up = false;
      if (!blocked.wait->key().empty() && blocked.wait->tasks().empty()) continue;  // anybody may end it
      for (const auto& other : blocked.needs) {
        if (seen.insert(other).second) open.push_back(other);
      }
    }
    if (!holds_up) continue;
    const auto said = said_.find(name);
    const std::string doing = said == said_.end() ? "" : said->second.doing();
    text += fmt::format("; {} waits for nobody{}", graph.view.tasks.at(name).description,
                        doing.empty() ? "" : ", and is " + doing);
  }
  return text;
}

}  // namespace muster::detail
