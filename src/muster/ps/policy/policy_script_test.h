#pragma once

// For tests: an UpdatePolicy with workers that do as the script says, and what it decides as text.
//
//   Script script({.workers = 2, .phases = {{0, Mode::kSync}}});
//   script.enter(0);   // "0 begins 0"                            worker 0 has a token for step 0
//   script.enter(1);   // "1 begins 0"
//   script.push(0);   // ""                                      it waits
//   script.push(1);   // "apply 0#1 1#1 = 1, 0 applied begins 1, 1 applied begins 1"
//
// 0#1 is the first gradient of worker 0, "= 1" the step after the command. Workers use the tokens that they
// have been given; fields of the push that a test sets are kept.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "muster/base/log.h"
#include "muster/ps/policy/update_policy.h"

namespace muster::detail {

inline std::string text_of(const Command& command) {
  std::string text = command.kind == Command::Kind::kApply        ? "apply"
                     : command.kind == Command::Kind::kAccumulate ? "accumulate"
                                                                  : "drop";
  for (const GradientSource& source : command.sources)
    text += fmt::format(" {}#{}", source.worker, source.sequence);
  return text + (command.kind == Command::Kind::kApply || command.sources.empty()
                     ? fmt::format(" = {}", command.step)
                     : "");
}

inline std::string text_of(const Answer& answer) {
  constexpr const char* kOutcomes[] = {"", " applied", " dropped", " skipped"};
  const std::string who = fmt::format("{}{}", answer.worker, kOutcomes[static_cast<int>(answer.outcome)]);
  return fmt::format("{} {} {}", who, answer.kind == Answer::Kind::kBegin ? "begins" : "done", answer.step);
}

inline std::string text_of(const Decision& decision) {
  std::vector<std::string> parts;
  for (const Command& command : decision.commands) parts.push_back(text_of(command));
  for (const Answer& answer : decision.answers) parts.push_back(text_of(answer));
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// Workers that fail at random would fill the log.
class QuietLog {
 public:
  QuietLog() { set_log_level(LogLevel::kError); }
  ~QuietLog() { set_log_level(LogLevel::kInfo); }
};

class Script {
 public:
  explicit Script(PolicyOptions options) : policy(std::move(options)) {}

  std::string enter(int worker, int incarnation = 0) {
    sequences_[worker] = 0;
    tokens_.erase(worker);
    return keep(policy.enter(worker, incarnation));
  }

  std::string push(int worker, Push push = {}) {
    push.sequence = sequences_[worker] + 1;
    push.step = tokens_[worker].step;
    push.version = tokens_[worker].version;
    Decision decision = policy.push(worker, push);
    ++sequences_[worker];
    tokens_.erase(worker);
    return keep(std::move(decision));
  }

  std::string finish_epoch(int worker) {
    tokens_.erase(worker);
    return keep(policy.finish_epoch(worker));
  }

  std::string away(int worker) {
    tokens_.erase(worker);
    return keep(policy.away(worker));
  }
  std::string back(int worker) { return keep(policy.back(worker)); }
  std::string resume(int worker) { return keep(policy.resume(worker)); }

  /// Why workers have no answer: "0 needs a gradient of 1", "0 needs 1 gradient ...".
  std::string needs() const {
    std::vector<std::string> parts;
    for (const auto& need : policy.needs()) {
      const std::string some = need.enough == 0 ? "" : fmt::format("{} of ", need.enough);
      parts.push_back(
          fmt::format("{} needs {} of {}{}", need.worker, need.what, some, fmt::join(need.of, " ")));
    }
    return fmt::format("{}", fmt::join(parts, ", "));
  }

  std::string leave(int worker) {
    tokens_.erase(worker);
    return keep(policy.leave(worker));
  }

  std::string fail(int worker) {
    tokens_.erase(worker);
    return keep(policy.fail(worker));
  }

  /// Workers 0 to n - 1.
  void enter_all(int workers) {
    for (int worker = 0; worker < workers; ++worker) enter(worker);
  }

  /// Those who have tokens push, one after the other, until the step has been reached or nobody has one.
  void run_to(int64_t step) {
    while (!tokens_.empty() && policy.step() < step) {
      const int worker = next_;
      if (has_token(worker)) push(worker);
      next_ = worker < sequences_.rbegin()->first ? worker + 1 : 0;
    }
  }

  bool has_token(int worker) const { return tokens_.contains(worker); }

  UpdatePolicy policy;
  Decision last;
  std::map<int, int> done;  ///< how often a worker was told that training is over

 private:
  std::string keep(Decision decision) {
    for (const Answer& answer : decision.answers) {
      if (answer.kind == Answer::Kind::kBegin) tokens_[answer.worker] = answer;
      if (answer.kind == Answer::Kind::kDone) ++done[answer.worker];
    }
    last = std::move(decision);
    return text_of(last);
  }

  std::map<int, uint64_t> sequences_;
  std::map<int, Answer> tokens_;
  int next_ = 0;
};

}  // namespace muster::detail
