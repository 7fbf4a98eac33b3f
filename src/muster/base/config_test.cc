#include "muster/base/config.h"

#include <set>
#include <string>

#include <CLI/CLI.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

Config read(const std::vector<std::string>& flags, Environment variables) {
  Config config;
  CLI::App app;
  config.add_flags(app);
  std::vector<std::string> reversed(flags.rbegin(), flags.rend());
  app.parse(reversed);
  config.read_environment(std::move(variables));
  return config;
}

template <typename Function>
std::string message_of(Function function) {
  try {
    function();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Config, AFlagWinsOverAVariableAndAVariableOverTheDefault) {
  const auto config = read({"--heartbeat-timeout", "250ms"},
                           {{"MUSTER_HEARTBEAT_TIMEOUT", "9s"}, {"MUSTER_JOIN_TIMEOUT", "2m"}});
  EXPECT_EQ(config.heartbeat_timeout, 250ms);
  EXPECT_EQ(config.join_timeout, 2min);
  EXPECT_EQ(config.log_level, LogLevel::kInfo);
}

TEST(Config, AnUnknownVariableIsAnErrorWithASuggestion) {
  EXPECT_THAT(
      message_of([] {
        read({}, {{"MUSTER_HEARTBEET_TIMEOUT", "9s"}});
      }),
      HasSubstr(
          "MUSTER_HEARTBEET_TIMEOUT is not one that Muster knows; did you mean MUSTER_HEARTBEAT_TIMEOUT?"));
}

TEST(Config, AMalformedVariableIsNamedWithWhatWasExpected) {
  EXPECT_THAT(message_of([] {
                read({}, {{"MUSTER_JOIN_TIMEOUT", "soon"}});
              }),
              HasSubstr("MUSTER_JOIN_TIMEOUT=soon is not a number with ms, s, m or h"));
  EXPECT_THAT(message_of([] { read({}, {{"MUSTER_LOG_LEVEL", "loud"}}); }), HasSubstr("debug, info"));
  EXPECT_THAT(message_of([] { read({}, {{"MUSTER_HEARTBEAT_TIMEOUT", "0s"}}); }), HasSubstr("0s is not"));
}

TEST(Config, AMalformedFlagIsRejectedByTheParser) {
  EXPECT_THROW(read({"--log-level", "loud"}, {}), CLI::ParseError);
}

TEST(Config, TheSecretIsNeitherAFlagNorPrinted) {
  EXPECT_THROW(read({"--secret", "x"}, {}), CLI::ExtrasError);
  const auto config = read({}, {{"MUSTER_SECRET", "hunter2"}});
  EXPECT_EQ(config.secret, "hunter2");
  EXPECT_THAT(config.to_string(), Not(HasSubstr("hunter2")));
}

TEST(Config, WhatIsExportedReadsBackAsTheSame) {
  const auto config =
      read({"--heartbeat-timeout", "250ms", "--progress", "live"}, {{"MUSTER_SECRET", "hunter2"}});
  Environment variables{{"MUSTER_TASK", "stale"}, {"HOME", "/h"}};
  config.export_to(variables);
  EXPECT_EQ(variables.names_with_prefix("MUSTER_"),
            (std::vector<std::string>{"MUSTER_HEARTBEAT_TIMEOUT", "MUSTER_PROGRESS", "MUSTER_SECRET"}));
  const auto again = read({}, variables);
  EXPECT_EQ(again.heartbeat_timeout, 250ms);
  EXPECT_EQ(again.progress, ProgressStyle::kLive);
  EXPECT_EQ(again.secret, "hunter2");
}

TEST(Config, AProgramMayTakeOnlySomeOfTheFlags) {
  Config config;
  CLI::App app;
  config.add_flags(app, {"job-id"});
  EXPECT_NE(app.get_option_no_throw("--job-id"), nullptr);
  EXPECT_EQ(app.get_option_no_throw("--task"), nullptr);
}

TEST(Config, TheFlagsOfAJobAreAllButWhoATaskIs) {
  const auto names_of = [](const CLI::App& app) {
    std::set<std::string> names;
    for (const CLI::Option* option : app.get_options()) names.insert(option->get_name());
    return names;
  };
  Config config;
  CLI::App of_task;
  config.add_flags(of_task);
  CLI::App of_job;
  config.add_job_flags(of_job);
  auto expected = names_of(of_task);
  EXPECT_EQ(expected.erase("--task"), 1);
  EXPECT_EQ(expected.erase("--cluster"), 1);
  EXPECT_EQ(names_of(of_job), expected);
}

TEST(Config, PrintsEverySettingWithItsSource) {
  const auto text = read({"--task", "/job:ps/task:0"}, {{"MUSTER_JOB_ID", "j1"}}).to_string();
  EXPECT_THAT(text, HasSubstr("/job:ps/task:0"));
  EXPECT_THAT(text, HasSubstr("--task"));
  EXPECT_THAT(text, HasSubstr("MUSTER_JOB_ID"));
  EXPECT_THAT(text, HasSubstr("default"));
}

}  // namespace
}  // namespace muster::detail
