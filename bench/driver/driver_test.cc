#include "bench/driver/driver.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::detail::bench {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(TakeTurns, EachRoundBeginsWithAnother) {
  std::vector<size_t> order;
  take_turns(3, 2, [&](size_t which) { order.push_back(which); });
  EXPECT_THAT(order, ElementsAre(0, 1, 1, 0, 0, 1));
}

TEST(TakeTurns, EachIsInEachPlaceAndFollowsEachOtherAsOften) {
  for (size_t count = 1; count <= 9; ++count) {
    const size_t times = count % 2 == 0 ? 1 : 2;
    std::map<std::pair<size_t, size_t>, size_t> in_place;
    std::map<std::pair<size_t, size_t>, size_t> follows;
    for (size_t round = 0; round < times * count; ++round) {
      const auto order = order_of_turns(round, count);
      ASSERT_THAT(order, SizeIs(count));
      for (size_t place = 0; place < count; ++place) {
        ++in_place[{order[place], place}];
        if (place > 0) ++follows[{order[place - 1], order[place]}];
      }
    }
    for (size_t one = 0; one < count; ++one) {
      for (size_t other = 0; other < count; ++other) {
        EXPECT_EQ((in_place[{one, other}]), times) << "of " << count;
        EXPECT_EQ((follows[{one, other}]), one == other ? 0 : times) << "of " << count;
      }
    }
  }
}

// A rank that answers each command with its own name, and dies when it is told to.
constexpr const char* kNamedRank = R"(
  exec 3<"$1/0.in" 4>"$1/0.out"
  echo "ready $$" >&4
  while read -r command <&3; do
    case $command in
      quit) exit 0 ;;
      die-$2) exit 7 ;;
      *) echo "$2" >&4 ;;
    esac
  done)";

class DriverTest : public ::testing::Test {
 protected:
  static SubjectCommand command(const std::string& name) {
    return {.of = {name, "shell"}, .processes = {{"/bin/sh", "-c", kNamedRank, "rank", "DIR", name}}};
  }

  /// Two measurements of these subjects, with three rounds each.
  bool run(const std::function<Turn(RunningSubject&, std::optional<double>)>& turn,
           const std::vector<SubjectCommand>& subjects = {command("one"), command("two")}) {
    const Measurement measurement = {
        .label = "a size", .turn = turn, .report = [&](const auto& measured, Output&) {
          reports.push_back(measured);
        }};
    Output output(ProgressStyle::kOff, {});
    Driver driver({.rounds = 3, .environment = Environment::of_process(), .timeout = 20s}, output);
    ::testing::internal::CaptureStderr();
    const bool all_well = driver.run({{.subjects = subjects, .measurements = {measurement, measurement}}});
    notices = ::testing::internal::GetCapturedStderr();
    return all_well;
  }

  std::vector<std::vector<Series>> reports;
  std::string notices;
};

TEST_F(DriverTest, TheFirstTurnIsNotCountedAndTheOthersKnowItsTime) {
  EXPECT_TRUE(run([](RunningSubject& subject, std::optional<double> fastest_us) -> Turn {
    subject.ask("name");
    return {.samples = {{.us = fastest_us ? *fastest_us + 1 : 5}}};
  }));
  ASSERT_THAT(reports, ElementsAre(SizeIs(2), SizeIs(2)));
  const Series& second = reports[1][1];
  EXPECT_EQ(second.of.subject, "two");
  ASSERT_THAT(second.samples, SizeIs(3));
  EXPECT_EQ(second.samples[2].us, 6);
  EXPECT_THAT(notices, IsEmpty());
}

TEST_F(DriverTest, OneThatFailsIsLeftOutAndTheOthersGoOn) {
  EXPECT_FALSE(run([](RunningSubject& subject, std::optional<double> fastest_us) -> Turn {
    subject.ask(fastest_us ? "die-one" : "name");
    return {.samples = {{.us = 1}}};
  }));
  ASSERT_THAT(reports, ElementsAre(SizeIs(1), SizeIs(1)));
  EXPECT_EQ(reports[0][0].of.subject, "two");
  EXPECT_THAT(notices, HasSubstr("one (shell), 1 rank: rank 0 (pid "));
}

TEST_F(DriverTest, OneThatDoesNotStartIsAProblemAndNoException) {
  auto fails = command("three");
  fails.processes = {{"/bin/sh", "-c", "exit 3"}};
  const SubjectCommand none = {.of = {"none", "shell"}, .processes = {{"/no/such/program"}}};
  EXPECT_FALSE(run([](RunningSubject&, std::optional<double>) -> Turn { return {.samples = {{.us = 1}}}; },
                   {fails, command("two"), none}));
  EXPECT_THAT(reports, ElementsAre(SizeIs(1), SizeIs(1)));
  EXPECT_THAT(notices, AllOf(HasSubstr("three (shell), 1 rank: rank 0 did not start"),
                             HasSubstr("none (shell), 1 rank: the program /no/such/program does not exist")));
}

TEST_F(DriverTest, WhatASubjectDoesNotOfferIsNoFailureAndSaidOnce) {
  EXPECT_TRUE(run([](RunningSubject& subject, std::optional<double>) -> Turn {
    if (subject.command().of.subject == "one") throw NotOffered("it has none");
    return {.samples = {{.us = 1}}};
  }));
  ASSERT_THAT(reports, ElementsAre(SizeIs(1), SizeIs(1)));
  EXPECT_EQ(notices, "muster: one (shell) is left out: it has none\n");
}

TEST_F(DriverTest, AWrongResultIsReportedAndSaidOnce) {
  EXPECT_FALSE(run([](RunningSubject& subject, std::optional<double>) -> Turn {
    return {.samples = {{.us = 1}}, .verified = subject.command().of.subject == "one"};
  }));
  EXPECT_TRUE(reports[0][0].verified);
  EXPECT_FALSE(reports[0][1].verified);
  const std::string line = "muster: two (shell), 1 rank: a wrong result (a size)\n";
  EXPECT_EQ(notices, line + line);
}

}  // namespace
}  // namespace muster::detail::bench
