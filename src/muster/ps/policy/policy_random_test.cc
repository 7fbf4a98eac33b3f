#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "muster/ps/policy/policy_script_test.h"

namespace muster::detail {
namespace {

// Workers that ask at random, enter, fail and enter again; every decision is held against what was
// promised.
class RandomJob {
 public:
  RandomJob(PolicyOptions options, uint32_t seed)
      : options_(std::move(options)),
        policy_(options_),
        generator_(seed),
        workers_(static_cast<size_t>(options_.workers)),
        step_(0) {}

  void run(int requests) {
    for (int i = 0; i < requests && !::testing::Test::HasFailure(); ++i) request(pick());
  }

  // Nobody fails any more, and all push until they are done.
  void finish() {
    for (int i = 0; i < 100'000 && !::testing::Test::HasFailure(); ++i) {
      Worker& worker = workers_[pick()];
      const int index = static_cast<int>(&worker - workers_.data());
      if (worker.status == Status::kAbsent) enter(index);
      if (worker.status == Status::kComputing) push(index);
      if (worker.status == Status::kAway) come_back(index);
      if (std::ranges::all_of(workers_, [](const Worker& w) { return w.status == Status::kDone; })) break;
    }
    EXPECT_EQ(policy_.step(), options_.max_steps);
    for (const Worker& worker : workers_) EXPECT_EQ(worker.status, Status::kDone) << describe();
    EXPECT_TRUE(open_.empty()) << open_.size() << " gradients were never named in a command";
    check_counts();
  }

 private:
  enum class Status { kAbsent, kComputing, kWaiting, kFinishedEpoch, kDone, kAway };
  struct Worker {
    Status status = Status::kAbsent;
    bool pushed = false;   // and waits for what became of it
    bool expected = true;  // it has not entered yet
    int incarnation = 0;
    uint64_t sequence = 0;
    Answer token;

    bool living() const { return status != Status::kAbsent; }
  };
  using Name = std::pair<int, uint64_t>;

  size_t pick() { return generator_() % workers_.size(); }

  void request(size_t at) {
    const int index = static_cast<int>(at);
    Worker& worker = workers_[at];
    const auto chance = generator_() % 100;
    if (worker.status == Status::kAbsent) {
      if (chance < 30) enter(index);
      if (chance >= 95) end(index, false);
    } else if (chance < 4) {
      end(index, chance == 0);
    } else if (worker.status == Status::kComputing) {
      if (chance < 16) {
        finish_epoch(index);
      } else if (chance < 24) {
        worker.status = Status::kAway;
        says(fmt::format("away {}", index), policy_.away(index));
      } else {
        push(index);
      }
    } else if (worker.status == Status::kAway && chance < 50) {
      come_back(index);
    }
  }

  void come_back(int index) {
    at(index).status = Status::kComputing;
    says(fmt::format("back {}", index), policy_.back(index));
    at(index).status = Status::kWaiting;
    says(fmt::format("resume {}", index), policy_.resume(index));
  }

  void enter(int index) {
    Worker& worker = at(index);
    worker.status = Status::kWaiting;
    worker.pushed = false;
    worker.expected = false;
    says(fmt::format("enter {}", index), policy_.enter(index, ++worker.incarnation));
  }

  void push(int index) {
    Worker& worker = at(index);
    const Push push = {.sequence = ++worker.sequence,
                       .step = worker.token.step,
                       .version = worker.token.version,
                       .total = static_cast<double>(1 + generator_() % 4),
                       .advance = static_cast<int64_t>(1 + generator_() % 3),
                       .skip = generator_() % 20 == 0};
    open_[{index, push.sequence}] = push;
    ++pushes_;
    worker.status = Status::kWaiting;
    worker.pushed = true;
    says(fmt::format("push {}", index), policy_.push(index, push));
  }

  void finish_epoch(int index) {
    at(index).status = Status::kFinishedEpoch;
    says(fmt::format("finish_epoch {}", index), policy_.finish_epoch(index));
  }

  void end(int index, bool leaves) {
    at(index).status = Status::kAbsent;
    at(index).expected = false;
    if (leaves) {
      says(fmt::format("leave {}", index), policy_.leave(index));
    } else {
      says(fmt::format("fail {}", index), policy_.fail(index));
    }
  }

  void says(const std::string& request, const Decision& decision) {
    SCOPED_TRACE(fmt::format("{}: {}", request, text_of(decision)));
    for (const Command& command : decision.commands) check(command);
    EXPECT_EQ(policy_.step(), step_);
    EXPECT_EQ(policy_.version(), version_);
    for (const Answer& answer : decision.answers) check(answer);
    check_moving();
  }

  void check(const Command& command) {
    double totals = accumulated_;
    for (const GradientSource& source : command.sources) {
      const auto found = open_.find({source.worker, source.sequence});
      ASSERT_NE(found, open_.end()) << "a gradient that was not pushed, or is named twice";
      EXPECT_TRUE(command.kind == Command::Kind::kDrop || !found->second.skip);
      EXPECT_TRUE(command.kind == Command::Kind::kDrop ||
                  command.averages == (mode_at(found->second.step) == Mode::kLocal))
          << "a gradient of a local step, or local steps for a gradient";
      totals += found->second.total;
      open_.erase(found);
    }
    EXPECT_TRUE(std::ranges::is_sorted(command.sources, {}, [](const GradientSource& source) {
      return Name(source.worker, source.sequence);
    }));
    if (command.kind == Command::Kind::kApply) {
      EXPECT_EQ(command.version, ++version_);
      EXPECT_EQ(command.divisor, totals);
    }
    if (command.kind != Command::Kind::kDrop)
      accumulated_ = command.kind == Command::Kind::kApply ? 0 : totals;
    if (command.kind == Command::Kind::kApply || command.sources.empty()) {
      EXPECT_GT(command.step, step_);
      EXPECT_LE(command.step, step_ + (mode_at(step_) == Mode::kLocal ? 3 : 1));
      EXPECT_EQ(phase_end(step_), phase_end(command.step - 1)) << "beyond the end of a phase";
      step_ = command.step;
    }
    EXPECT_EQ(command.version, version_);
    EXPECT_EQ(command.step, step_);
  }

  void check(const Answer& answer) {
    Worker& worker = at(answer.worker);
    EXPECT_EQ(answer.version, version_);
    EXPECT_EQ(answer.step, step_);
    EXPECT_TRUE(worker.status == Status::kWaiting || worker.status == Status::kFinishedEpoch);
    EXPECT_EQ(answer.outcome != Answer::Outcome::kNone, worker.status == Status::kWaiting && worker.pushed);
    EXPECT_EQ(answer.kind == Answer::Kind::kDone, step_ >= options_.max_steps);
    EXPECT_TRUE(std::ranges::none_of(open_, [&](const auto& item) {
      return item.first.first == answer.worker;
    })) << "the worker goes on, and its gradient has not been taken";
    worker.pushed = false;
    worker.status = answer.kind == Answer::Kind::kDone ? Status::kDone : Status::kComputing;
    worker.token = answer;
    EXPECT_TRUE(answer.kind == Answer::Kind::kDone || answer.mode == mode_at(step_));
  }

  void check_moving() {
    const auto living = std::ranges::count_if(workers_, &Worker::living);
    EXPECT_EQ(policy_.living(), living);
    const bool moving = std::ranges::any_of(workers_, [](const Worker& worker) {
      return worker.status == Status::kComputing || worker.status == Status::kDone ||
             worker.status == Status::kAway || worker.expected;
    });
    EXPECT_TRUE(moving || living == 0) << "stuck: " << describe();
    check_needs();
  }

  // Whoever waits is told whom for, and it is not for those who are away or wait for nothing of its kind.
  void check_needs() const {
    std::vector<int> waiting;
    for (size_t i = 0; i < workers_.size(); ++i) {
      const Status status = workers_[i].status;
      if (status == Status::kWaiting || status == Status::kFinishedEpoch)
        waiting.push_back(static_cast<int>(i));
    }
    std::vector<int> told;
    for (const auto& need : policy_.needs()) {
      told.push_back(need.worker);
      EXPECT_FALSE(need.of.empty()) << need.worker << ": " << describe();
      for (const int other : need.of) {
        EXPECT_NE(other, need.worker);
        EXPECT_NE(workers_[static_cast<size_t>(other)].status, Status::kAway);
      }
    }
    std::ranges::sort(told);
    EXPECT_EQ(told, waiting);
  }

  void check_counts() const {
    int64_t counted = 0;
    for (const auto& [worker, counts] : policy_.counts()) {
      counted += counts.applied + counts.dropped + counts.skipped;
    }
    EXPECT_EQ(counted, pushes_);
  }

  Mode mode_at(int64_t step) const {
    Mode mode = Mode::kAsync;
    for (const Phase& phase : options_.phases) {
      if (phase.from <= step) mode = phase.mode;
    }
    return mode;
  }

  int64_t phase_end(int64_t step) const {
    for (const Phase& phase : options_.phases) {
      if (phase.from > step) return phase.from;
    }
    return options_.max_steps;
  }

  std::string describe() const {
    constexpr const char* kNames[] = {"absent", "computing", "waiting", "finished", "done", "away"};
    std::string text = fmt::format("step {}", policy_.step());
    for (const Worker& worker : workers_)
      text += fmt::format(", {}", kNames[static_cast<int>(worker.status)]);
    return text;
  }

  Worker& at(int index) { return workers_[static_cast<size_t>(index)]; }

  const PolicyOptions options_;
  UpdatePolicy policy_;
  std::mt19937 generator_;
  std::vector<Worker> workers_;
  std::map<Name, Push> open_;  // gradients that no command has named yet
  double accumulated_ = 0;     // the totals that the next update has already
  int64_t step_ = 0;
  int64_t version_ = 0;
  int64_t pushes_ = 0;
};

PolicyOptions random_options(Mode mode, uint32_t seed) {
  std::mt19937 generator(seed);
  auto below = [&](int bound) { return static_cast<int>(generator() % static_cast<uint32_t>(bound)); };
  PolicyOptions options = {.workers = 1 + below(5), .phases = {{0, mode}}, .max_steps = 150 + below(5)};
  options.aggregate = below(3) == 0 ? 0 : 1 + below(options.workers + 3);
  if (below(3) == 0) options.init_tokens = std::max(options.aggregate, options.workers) + below(4);
  options.max_staleness = below(4) - 1;
  options.staleness_damping = below(2) == 0;
  options.staleness = below(4);
  return options;
}

class PolicyRandom : public ::testing::TestWithParam<Mode> {
 private:
  const QuietLog quiet_;
};

TEST_P(PolicyRandom, KeepsItsPromisesWhateverTheWorkersDo) {
  for (uint32_t seed = 0; seed < 100 && !HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomJob job(random_options(GetParam(), seed), seed);
    job.run(400);
    job.finish();
  }
}

TEST_P(PolicyRandom, AlsoWhenModesFollowEachOther) {
  for (uint32_t seed = 0; seed < 100 && !HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    PolicyOptions options = random_options(GetParam(), seed);
    for (int64_t from = 7; from < 100; from += 1 + seed % 30) {
      options.phases.push_back({from, static_cast<Mode>((static_cast<uint32_t>(from) * 7 + seed) % 4)});
    }
    RandomJob job(options, seed);
    job.run(400);
    job.finish();
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, PolicyRandom,
                         ::testing::Values(Mode::kAsync, Mode::kSync, Mode::kSsp, Mode::kLocal),
                         [](const auto& tested) {
                           std::string name = to_string(tested.param);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace muster::detail
