#include "bench/driver/stage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/text.h"

namespace muster {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;

// A rank that answers each command with the value of a variable, and dies when it is told to.
constexpr const char* kStageRank = R"(
  exec 3<"$1/0.in" 4>"$1/0.out"
  echo "ready $$" >&4
  while read -r command <&3; do
    case $command in
      quit) exit 0 ;;
      die) exit 7 ;;
      *) echo "${WHAT:-nothing}" >&4 ;;
    esac
  done)";

class Notices : public BenchObserver {
 public:
  void on_notice(const std::string& text) override { texts.push_back(text); }
  void on_progress(double, const std::string&) override {}

  std::vector<std::string> texts;
};

class BenchStageTest : public ::testing::Test {
 protected:
  static SubjectCommand command(const std::string& script = kStageRank) {
    return {.of = {"fake", "shell"}, .processes = {{"/bin/sh", "-c", script, "rank", "DIR"}}};
  }
  static Environment environment() {
    auto variables = Environment::of_process();
    variables.set("WHAT", "inherited");
    return variables;
  }

  Notices notices;
  BenchStage stage{{.environment = environment(), .timeout = 20s}, notices};
};

TEST_F(BenchStageTest, TheOneThatFailsIsLeftOutAndTheOthersGoOn) {
  Contender& first = stage.add(command(), 1);
  Contender& second = stage.add(command(), 1);
  EXPECT_EQ(first.ask("die"), std::nullopt);
  EXPECT_FALSE(first.running());
  EXPECT_THAT(first.pids(), IsEmpty());
  EXPECT_EQ(first.ask("what"), std::nullopt);
  EXPECT_THAT(second.ask("what"), Optional(ElementsAre("inherited")));
  EXPECT_EQ(second.pids().size(), 1u);
  EXPECT_FALSE(stage.all_well());
  EXPECT_THAT(notices.texts, ElementsAre(HasSubstr("fake (shell), 1 rank: rank 0")));
}

TEST_F(BenchStageTest, TheOneThatDoesNotStartIsAProblemAndNoException) {
  EXPECT_FALSE(stage.add(command("exit 3"), 1).running());
  EXPECT_FALSE(stage.add({.of = {"fake", "none"}, .processes = {{"/no/such/program"}}}, 1).running());
  EXPECT_EQ(notices.texts.size(), 2u);
  EXPECT_FALSE(stage.all_well());
}

TEST_F(BenchStageTest, VariablesAreTakenOutAndAdded) {
  auto without = command();
  without.without = {"WHAT"};
  auto other = command();
  other.without = {"WHAT"};
  other.variables = {{"WHAT", "other"}};
  EXPECT_THAT(stage.add(without, 1).ask("what"), Optional(ElementsAre("nothing")));
  EXPECT_THAT(stage.add(other, 1).ask("what"), Optional(ElementsAre("other")));
  EXPECT_TRUE(stage.all_well());
}

TEST(TakeTurns, EachRoundBeginsWithAnother) {
  std::vector<size_t> order;
  take_turns(3, 2, [&](size_t which) { order.push_back(which); });
  EXPECT_THAT(order, ElementsAre(0, 1, 1, 0, 0, 1));
}

}  // namespace
}  // namespace muster
