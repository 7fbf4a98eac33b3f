#include "muster/base/flags.h"

#include <algorithm>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "muster/base/text.h"

namespace muster::detail {
namespace {

struct Result {
  std::optional<int> code;
  std::string output;
  std::string errors;
};

Result parse(CLI::App& app, std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "program");
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Result result;
  result.code = parse_flags(app, static_cast<int>(arguments.size()), arguments.data());
  result.output = ::testing::internal::GetCapturedStdout();
  result.errors = ::testing::internal::GetCapturedStderr();
  return result;
}

TEST(ParseFlags, GoodFlagsLetTheProgramGoOn) {
  CLI::App app{"test"};
  int epochs = 0;
  app.add_option("--epochs", epochs, "passes over the data");
  EXPECT_FALSE(parse(app, {"--epochs", "3"}).code);
  EXPECT_EQ(epochs, 3);
}

TEST(ParseFlags, HelpEndsWithZeroOnStandardOutput) {
  CLI::App app{"test"};
  const auto result = parse(app, {"--help"});
  EXPECT_EQ(result.code, 0);
  EXPECT_NE(result.output.find("--help"), std::string::npos);
}

TEST(ParseFlags, AMisspeltFlagIsNamedWithTheNearest) {
  CLI::App app{"test"};
  int epochs = 0;
  app.add_option("--epochs", epochs, "passes over the data");
  const auto result = parse(app, {"--epohcs=3"});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.errors.find("--epohcs is not a flag here; did you mean --epochs?"), std::string::npos)
      << result.errors;
  const auto of_launcher = parse(app, {"--workers=3"});
  EXPECT_NE(of_launcher.errors.find("--workers is not a flag here; `muster run` has it, before --"),
            std::string::npos)
      << of_launcher.errors;
}

TEST(ParseFlags, AMisspeltCommandIsNamedWithTheNearest) {
  CLI::App app{"test"};
  app.require_subcommand(1);
  app.add_subcommand("run", "runs");
  const auto result = parse(app, {"rnu"});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.errors.find("'rnu' was not expected; did you mean run?"), std::string::npos)
      << result.errors;
  const auto with_flags = parse(app, {"rnu", "--workers", "2"});
  EXPECT_NE(with_flags.errors.find("'rnu' is no command; did you mean run?"), std::string::npos)
      << with_flags.errors;
}

TEST(ParseFlags, AMisspeltFlagOfACommandIsFoundBeforeTheWordsAfterIt) {
  CLI::App app{"test"};
  auto* run = app.add_subcommand("run", "runs");
  int workers = 0;
  std::vector<std::string> program;
  run->add_option("--workers", workers);
  run->add_option("program", program);
  const auto result = parse(app, {"run", "--wrokers", "2", "--", "ls"});
  EXPECT_NE(result.errors.find("--wrokers is not a flag here; did you mean --workers?"), std::string::npos)
      << result.errors;
}

TEST(ParseFlags, WhatIsMissingIsSaidWithWhatItIs) {
  CLI::App app{"test", "muster"};
  std::string graph;
  app.add_option("graph", graph, "the file: model.pb")->required();
  const auto result = parse(app, {});
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.errors,
            "muster: graph is required (the file: model.pb)\nRun with --help for what there is.\n");
}

TEST(ParseFlags, AMalformedValueIsAnError) {
  CLI::App app{"test"};
  int epochs = 0;
  app.add_option("--epochs", epochs, "passes over the data");
  const auto result = parse(app, {"--epochs", "many"});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.errors.find("--epochs"), std::string::npos) << result.errors;
}

TEST(ParseFlags, AnEmptyNumberIsAnError) {
  CLI::App app{"test"};
  auto* run = app.add_subcommand("run", "runs");
  int epochs = 3;
  std::optional<int> workers;
  double rate = 0.5;
  std::string text = "t";
  run->add_option("--epochs", epochs);
  run->add_option("--workers", workers);
  run->add_option("--rate", rate);
  run->add_option("--text", text);
  for (const char* flag : {"--epochs", "--workers", "--rate"}) {
    const auto result = parse(app, {"run", flag, ""});
    EXPECT_EQ(result.code, 2) << flag;
    EXPECT_NE(result.errors.find(fmt::format("{}: the value is empty", flag)), std::string::npos)
        << result.errors;
  }
  EXPECT_EQ(parse(app, {"run", "--text", ""}).code, std::nullopt);
  EXPECT_EQ(text, "");
}

TEST(ParseFlags, EmptyValuesCanBeRefused) {
  CLI::App app{"test"};
  std::string folder;
  std::string later = "l";
  bool flag = false;
  app.add_option("--folder", folder);
  app.add_flag("--flag", flag);
  refuse_empty_values(app);
  app.add_option("--later", later);
  const auto result = parse(app, {"--folder", ""});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.errors.find("--folder: the value is empty"), std::string::npos) << result.errors;
  EXPECT_EQ(parse(app, {"--folder", "here", "--flag", "--later", ""}).code, std::nullopt);
}

TEST(ParseFlags, AFlagOfTheProgramsIsNamedAndNotOneThatIsInItsPlace) {
  CLI::App app{"test"};
  auto* run = app.add_subcommand("run", "runs");
  int workers = 0;
  std::vector<std::string> program;
  run->add_option("--workers", workers);
  run->add_option("program", program)->required();
  for (const std::vector<const char*>& words :
       {std::vector<const char*>{"run", "--workers", "2", "--accumulate", "2", "--", "mnist", "--epochs",
                                 "1"},
        {"run", "--accumulate=2", "--workers", "2"}}) {
    const auto result = parse(app, words);
    EXPECT_EQ(result.code, 2);
    EXPECT_NE(
        result.errors.find("--accumulate is not a flag here; if it is one of the program's, it comes after "
                           "-- and the program"),
        std::string::npos)
        << result.errors;
  }
}

TEST(ParseFlags, ANegativeValueIsNoFlag) {
  CLI::App app{"test"};
  int least = 0;
  app.add_option("--least", least);
  const auto result = parse(app, {"--least", "-1", "--mots", "3"});
  EXPECT_NE(result.errors.find("--mots is not a flag here"), std::string::npos) << result.errors;
}

TEST(ParseFlags, RangesAreForPeople) {
  CLI::App app{"test"};
  int epochs = 0;
  double rate = 0;
  int level = 0;
  app.add_option("--epochs", epochs)->check(CLI::PositiveNumber);
  app.add_option("--rate", rate)->check(CLI::NonNegativeNumber);
  app.add_option("--level", level)->check(CLI::Range(1, 9));
  const std::pair<std::vector<const char*>, std::string> cases[] = {
      {{"--epochs", "0"}, "program: --epochs 0 is not a number above 0\n"},
      {{"--rate", "-1"}, "program: --rate -1 is not a number from 0\n"},
      {{"--level", "10"}, "program: --level 10 is not a number from 1 to 9\n"},
      {{"--rate", "fast"}, "program: --rate fast is not a number from 0\n"}};
  for (const auto& [words, expected] : cases) EXPECT_TRUE(parse(app, words).errors.starts_with(expected));
}

TEST(ParseFlags, ANumberThatIsNoneIsNamedWithItsFlag) {
  CLI::App app{"test"};
  int workers = 0;
  app.add_option("--workers", workers);
  EXPECT_TRUE(
      parse(app, {"--workers", "two"}).errors.starts_with("program: --workers two is not a whole number"));
}

TEST(ParseFlags, HelpIsWrappedAtAHundredColumns) {
  CLI::App app{"test"};
  std::string text;
  std::string words;
  for (int i = 0; i < 60; ++i) words += "word ";
  app.add_option("--short", text, words);
  app.add_option("--a-flag-with-a-name-that-is-long", text, words);
  app.add_subcommand("command", words);
  const auto result = parse(app, {"--help"});
  size_t longest = 0;
  for (const auto& line : split(result.output, '\n')) {
    longest = std::max(longest, line.size());
    EXPECT_FALSE(line.ends_with("long TEXT ")) << result.output;
  }
  EXPECT_LE(longest, 100u) << result.output;
  EXPECT_GT(longest, 90u) << result.output;
}

}  // namespace
}  // namespace muster::detail
