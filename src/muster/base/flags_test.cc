#include "muster/base/flags.h"

#include <CLI/CLI.hpp>
#include <gtest/gtest.h>

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
}

TEST(ParseFlags, AMisspeltCommandIsNamedWithTheNearest) {
  CLI::App app{"test"};
  app.require_subcommand(1);
  app.add_subcommand("run", "runs");
  const auto result = parse(app, {"rnu"});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.errors.find("'rnu' was not expected; did you mean run?"), std::string::npos)
      << result.errors;
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

TEST(ParseFlags, AMalformedValueIsAnError) {
  CLI::App app{"test"};
  int epochs = 0;
  app.add_option("--epochs", epochs, "passes over the data");
  const auto result = parse(app, {"--epochs", "many"});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.errors.find("--epochs"), std::string::npos) << result.errors;
}

}  // namespace
}  // namespace muster::detail
