#include "muster/base/config.h"

#include <set>
#include <string>

#include <CLI/CLI.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/testing/message_of.h"

namespace muster::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using ::testing::Not;
using ::testing::SizeIs;
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

TEST(ConfigOfAProgram, SettingsThatTheLauncherWouldNeedAreSaid) {
  const auto said = [](const std::vector<std::string>& flags, const Environment& variables) {
    return read(flags, variables).without_effect_on_the_launcher();
  };
  const Environment launched = {{"MUSTER_COORDINATOR", "127.0.0.1:4000"}};
  EXPECT_THAT(said({"--stall-warning", "2s"}, launched),
              ElementsAre(HasSubstr("--stall-warning was given to the program")));
  EXPECT_THAT(said({"--collective-timeout", "2s", "--heartbeat-timeout", "3s"}, launched), SizeIs(2));
  EXPECT_THAT(said({}, {{"MUSTER_COORDINATOR", "127.0.0.1:4000"}, {"MUSTER_STALL_WARNING", "2s"}}), IsEmpty())
      << "the launcher itself said so";
  EXPECT_THAT(said({"--stall-warning", "2s"}, {}), IsEmpty()) << "nobody launched it";
}

TEST(ConfigOfAProgram, SettingsOfTrainingAreKnownToHaveBeenGiven) {
  EXPECT_THAT(read({"--stall-warning", "2s", "--engine", "native"}, {}).given_for_training(), IsEmpty());
  EXPECT_THAT(
      read({"--strategy", "ps-async", "--hogwild"}, {{"MUSTER_PRECISION", "bf16"}}).given_for_training(),
      ElementsAre("--strategy ps-async", "--precision bf16", "--hogwild"));
  EXPECT_THAT(read({"--strategy", "ps-async", "--hogwild", "--on-nan", "skip"}, {}).given_for_trainers(),
              ElementsAre("--hogwild"));
  EXPECT_THAT(read({"--strategy", "none"}, {}).given_for_training(), IsEmpty()) << "nobody trains by it";
  EXPECT_THAT(read({"--stall-warning", "2s", "--engine", "native", "--precision", "bf16"},
                   {{"MUSTER_ALGORITHM", "ring"}})
                  .given_for_collectives(),
              ElementsAre("--engine native", "--algorithm ring"));
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
      message_of<InvalidArgument>([] {
        read({}, {{"MUSTER_HEARTBEET_TIMEOUT", "9s"}});
      }),
      HasSubstr(
          "MUSTER_HEARTBEET_TIMEOUT is not one that Muster knows; did you mean MUSTER_HEARTBEAT_TIMEOUT?"));
}

TEST(Config, AVariableForAFlagOfTheLauncherSaysSo) {
  EXPECT_THAT(message_of<InvalidArgument>([] {
                read({}, {{"MUSTER_MAX_RESTARTS", "2"}});
              }),
              HasSubstr("MUSTER_MAX_RESTARTS is not one that Muster knows; `muster run` has the flag "
                        "--max-restarts, and no variable for it"));
}

TEST(Config, AMalformedVariableIsNamedWithWhatWasExpected) {
  EXPECT_THAT(
      message_of<InvalidArgument>([] {
        read({}, {{"MUSTER_JOIN_TIMEOUT", "soon"}});
      }),
      HasSubstr("MUSTER_JOIN_TIMEOUT=soon is not a time of at least 1ms, a number with ms, s, m or h"));
  EXPECT_THAT(message_of<InvalidArgument>([] {
                read({}, {{"MUSTER_LOG_LEVEL", "loud"}});
              }),
              HasSubstr("debug, info"));
  EXPECT_THAT(message_of<InvalidArgument>([] {
                read({}, {{"MUSTER_HEARTBEAT_TIMEOUT", "0s"}});
              }),
              HasSubstr("0s is not"));
}

TEST(Config, AMalformedFlagIsRejectedByTheParser) {
  EXPECT_THROW(read({"--log-level", "loud"}, {}), CLI::ParseError);
  EXPECT_THROW(read({"--coordinator", "not a host"}, {}), CLI::ParseError);
  EXPECT_THROW(read({"--coordinator", "::::"}, {}), CLI::ParseError);
  for (const char* address : {"::1", "fe80::1%eth0", "[::1]:80"})
    EXPECT_EQ(read({"--coordinator", address}, {}).coordinator, address);
  EXPECT_THROW(read({"--heartbeat-timeout", "1ms"}, {}), CLI::ParseError);
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

// What Config::check says of flags and variables in a job of two workers and `servers` parameter servers.
std::string complaint(const std::vector<std::string>& flags, int servers = 0, Environment variables = {}) {
  return message_of<InvalidArgument>([&] {
    read(flags, std::move(variables)).check({.workers = {"worker/0", "worker/1"}, .servers = servers});
  });
}

constexpr const char* kNoComplaint = "nothing was thrown";

TEST(Config, AFlagOfAnotherStrategyIsAnErrorWithTheRemedy) {
  EXPECT_EQ(complaint({"--staleness", "4"}),
            "--staleness applies to ps-ssp, not to allreduce; add --strategy ps-ssp or leave it out");
  EXPECT_THAT(complaint({"--hogwild"}),
              HasSubstr("--hogwild applies to ps-async and ps-ssp, not to allreduce"));
  EXPECT_THAT(complaint({"--placement", "balanced"}),
              HasSubstr("choose one of these by --strategy or leave it out"));
  EXPECT_THAT(complaint({"--strategy", "ps-sync", "--sync-every", "4"}, 1),
              HasSubstr("--sync-every applies to ps-local, not to ps-sync"));
  EXPECT_EQ(complaint({"--switch", "0:ps-sync,5:ps-async,9:ps-sync", "--sync-every", "4"}),
            "--sync-every applies to ps-local, not to ps-sync and ps-async; let one of the modes of --switch "
            "be such or leave it out");
  EXPECT_THAT(complaint({"--strategy", "ps-sync", "--bucket", "4M"}, 1),
              HasSubstr("--bucket applies to allreduce, not to ps-sync"));
  EXPECT_THAT(complaint({"--strategy", "none", "--precision", "bf16"}), HasSubstr("not to none"));
}

TEST(Config, EveryFlagOfParameterServersIsRefusedByAllReduce) {
  const std::vector<std::vector<std::string>> flags = {
      {"--placement", "sliced"}, {"--replicas-to-aggregate", "0"}, {"--init-tokens", "0"},
      {"--max-staleness", "-1"}, {"--staleness-damping"},          {"--staleness", "0"},
      {"--sync-every", "16"},    {"--outer-momentum", "0"},        {"--hogwild"},
      {"--server-wait", "30s"}};
  for (const auto& given : flags) EXPECT_THAT(complaint(given), HasSubstr(given.front() + " applies to ps-"));
}

TEST(Config, AVariableOfAnotherStrategyIsAnErrorToo) {
  EXPECT_EQ(complaint({}, 0, {{"MUSTER_STALENESS", "0"}}),
            "MUSTER_STALENESS applies to ps-ssp, not to allreduce; add --strategy ps-ssp or unset it");
}

TEST(Config, WhatAppliesIsAccepted) {
  EXPECT_EQ(complaint({"--bucket", "4M", "--on-nan", "skip", "--slow", "worker/1:3x"}), kNoComplaint);
  EXPECT_EQ(complaint({"--strategy", "ps-ssp", "--staleness", "4", "--max-staleness", "9"}, 1), kNoComplaint);
  EXPECT_EQ(complaint({"--switch", "0:ps-sync,5:ps-ssp", "--staleness", "4", "--init-tokens", "4"}, 1),
            kNoComplaint);
  EXPECT_EQ(complaint({"--tls-cert", "a", "--tls-key", "b", "--tls-ca", "c"}), kNoComplaint);
}

TEST(Config, ServersAndTheirStrategiesNeedEachOther) {
  EXPECT_THAT(complaint({}, 2), HasSubstr("--ps 2 has no effect with --strategy allreduce"));
  EXPECT_EQ(complaint({"--strategy", "none"}, 2), kNoComplaint);
  EXPECT_THAT(complaint({"--strategy", "ps-async"}),
              HasSubstr("--strategy ps-async needs a parameter server"));
}

TEST(Config, PlacementIsForSeveralServers) {
  EXPECT_THAT(complaint({"--strategy", "ps-sync", "--placement", "balanced"}, 1),
              HasSubstr("--placement balanced has no effect with one parameter server"));
  EXPECT_EQ(complaint({"--strategy", "ps-sync", "--placement", "balanced"}, 2), kNoComplaint);
}

TEST(Config, WithAStalenessOf0NothingIsStale) {
  EXPECT_THAT(complaint({"--strategy", "ps-ssp", "--staleness-damping"}, 1),
              HasSubstr("--staleness-damping has no effect with ps-ssp and a staleness of 0"));
  EXPECT_THAT(complaint({"--switch", "0:ps-sync,3:ps-ssp", "--max-staleness", "2"}, 1),
              HasSubstr("--max-staleness has no effect"));
  EXPECT_EQ(complaint({"--switch", "0:ps-ssp,3:ps-async", "--max-staleness", "2"}, 1), kNoComplaint);
  EXPECT_EQ(complaint({"--strategy", "ps-ssp", "--max-staleness", "-1"}, 1), kNoComplaint);
}

TEST(Config, ModesToSwitchBetweenAreAStrategy) {
  EXPECT_EQ(read({"--switch", "0:ps-ssp,5:ps-async"}, {}).strategy, "ps-ssp");
  EXPECT_EQ(read({}, {{"MUSTER_SWITCH", "0:ps-sync"}}).strategy, "ps-sync");
  EXPECT_EQ(message_of<InvalidArgument>([] {
              read({"--switch", "0:ps-sync,5:ps-async", "--strategy", "allreduce"}, {});
            }),
            "--switch begins with ps-sync, and --strategy is allreduce: leave the strategy out, or make it "
            "ps-sync");
  for (const char* bad : {"garbage", "0:allreduce", "1:ps-sync", "0:ps-sync,0:ps-async", "0:ps-sync,"})
    EXPECT_THROW(read({"--switch", bad}, {}), CLI::ValidationError) << bad;
}

TEST(Config, OnlyAWorkerThatIsThereCanBeSlow) {
  EXPECT_EQ(complaint({"--slow", "worker/7:3x"}),
            "--slow worker/7:3x: the job has no worker/7, only worker/0 to worker/1");
  EXPECT_THAT(complaint({"--strategy", "ps-sync", "--slow", "ps/0:3x"}, 1), HasSubstr("the job has no ps/0"));
  for (const char* bad : {"nonsense", "worker/1:3", "worker/1:0.5x", "worker/1:3x,"})
    EXPECT_THROW(read({"--slow", bad}, {}), CLI::ValidationError) << bad;
}

TEST(Config, TlsIsAllOfItsFlagsOrNone) {
  EXPECT_THAT(complaint({"--tls-cert", "a", "--tls-key", "b", "--tls-ca", "c", "--engine", "gloo"}),
              HasSubstr("--engine gloo has connections of its own, which --tls-cert does not encrypt"));
  EXPECT_THAT(complaint({"--tls-cert", "a"}),
              HasSubstr("add --tls-key and --tls-ca, or leave --tls-cert out"));
  EXPECT_THAT(complaint({"--tls-cert", "a", "--tls-ca", "c"}), HasSubstr("add --tls-key"));
}

TEST(Config, WhatIsBetweenTasksHasNoEffectOnOneAlone) {
  EXPECT_THAT(read({"--interface", "lo", "--engine", "gloo", "--shared-memory", "off", "--stall-warning",
                    "1s", "--join-timeout", "2s", "--bucket", "1M", "--precision", "bf16"},
                   {{"MUSTER_COLLECTIVE_TIMEOUT", "3s"}})
                  .without_effect_alone(),
              ::testing::UnorderedElementsAre("--interface lo", "--engine gloo", "--shared-memory off",
                                              "--stall-warning 1s", "--join-timeout 2s", "--bucket 1M"));
}

TEST(Config, WhatIsBetweenHostsHasNoEffectOnOne) {
  EXPECT_THAT(read({"--wire", "fp16", "--sockets", "2", "--engine", "gloo"}, {}).without_effect_on_one_host(),
              ::testing::ElementsAre(HasSubstr("--wire fp16 has no effect: all tasks are on one host"),
                                     HasSubstr("--sockets 2")));
  EXPECT_THAT(read({"--wire", "fp16", "--shared-memory", "off"}, {}).without_effect_on_one_host(),
              ::testing::IsEmpty());
}

TEST(Config, HelpHasGroupsAndDefaults) {
  Config config;
  CLI::App app;
  config.add_flags(app);
  const std::string help = app.help();
  for (const char* text : {"Muster, the job:", "Muster, training:", "Muster, parameter servers:",
                           "--heartbeat-timeout DURATION=10s", "--sync-every N=16",
                           "--placement CHOICE=sliced", "ps-async and ps-ssp: drop gradients"})
    EXPECT_THAT(help, HasSubstr(text));
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
