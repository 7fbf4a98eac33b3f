#include "muster/task_output.h"

#include <unistd.h>

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

using ::testing::ElementsAre;

class TaskOutputTest : public ::testing::Test {
 protected:
  TaskOutput make(bool terminal, const std::filesystem::path& log_dir = {}) {
    return TaskOutput({.out_is_terminal = terminal,
                       .err_is_terminal = terminal,
                       .log_dir = log_dir,
                       .write = [this](int fd, std::string_view text) { written[fd] += text; }},
                      {"ps/0", "worker/0"});
  }
  std::map<int, std::string> written;
};

TEST_F(TaskOutputTest, LinesAreWholeAndPrefixed) {
  auto output = make(false);
  output.write(1, 1, "hel");
  EXPECT_EQ(written[1], "");
  output.write(0, 2, "error\n");
  output.write(1, 1, "lo\nworld\n\n");
  EXPECT_EQ(written[1], "worker/0 | hello\nworker/0 | world\nworker/0 | \n");
  EXPECT_EQ(written[2], "ps/0     | error\n");
}

TEST_F(TaskOutputTest, WhatEndsWithoutANewlineIsNotLost) {
  auto output = make(false);
  output.write(0, 1, "last words");
  output.close(0, 1);
  EXPECT_EQ(written[1], "ps/0     | last words\n");
}

TEST_F(TaskOutputTest, TheLastLinesAreKept) {
  auto output = make(false);
  for (int i = 0; i < 30; ++i) output.write(0, 1, std::to_string(i) + "\n");
  const auto lines = output.last_lines(0);
  ASSERT_EQ(lines.size(), 20u);
  EXPECT_EQ(lines.front(), "10");
  EXPECT_EQ(lines.back(), "29");
  EXPECT_TRUE(output.last_lines(1).empty());
}

TEST_F(TaskOutputTest, ALiveLineStaysBelowWhatIsPrinted) {
  auto output = make(true);
  output.write(1, 2, "50%\x1b[K\r");
  EXPECT_EQ(written[2], "\r\x1b[K\x1b[33mworker/0 |\x1b[0m 50%");
  written.clear();
  output.write(0, 2, "hello\n");
  EXPECT_EQ(written[2], "\r\x1b[K\x1b[36mps/0     |\x1b[0m hello\n\x1b[33mworker/0 |\x1b[0m 50%");
  written.clear();
  output.write(1, 2, "\x1b[K\r");
  EXPECT_EQ(written[2], "\r\x1b[K");
  written.clear();
  output.write(0, 2, "bye\n");
  EXPECT_EQ(written[2], "\x1b[36mps/0     |\x1b[0m bye\n");
}

TEST_F(TaskOutputTest, WithoutATerminalThereIsNoLiveLineAndNoColour) {
  auto output = make(false);
  output.write(1, 1, "50%\x1b[K\r");
  EXPECT_EQ(written[1], "");
  output.write(1, 1, "windows\r\n");
  EXPECT_EQ(written[1], "worker/0 | windows\n");
}

TEST_F(TaskOutputTest, EachTaskHasItsLogFile) {
  const auto folder = std::filesystem::temp_directory_path() / ("output_test." + std::to_string(getpid()));
  {
    auto output = make(false, folder / "deep");
    output.write(1, 1, "one\n");
    output.write(1, 2, "two\n");
  }
  std::ifstream file(folder / "deep" / "worker-0.log");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(text, "one\ntwo\n");
  EXPECT_TRUE(std::filesystem::exists(folder / "deep" / "ps-0.log"));
  std::filesystem::remove_all(folder);
  EXPECT_THROW(make(false, "/proc/nowhere"), SystemError);
}

TEST_F(TaskOutputTest, TheLauncherSpeaksOnStandardError) {
  auto output = make(true);
  output.say("3 tasks");
  EXPECT_EQ(written[2], "muster   | 3 tasks\n");
  written.clear();
  output.warn("failed");
  EXPECT_EQ(written[2], "muster   | \x1b[1;31mfailed\x1b[0m\n");
}

}  // namespace
}  // namespace muster::detail
