#include "muster/task_output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

using ::testing::ElementsAre;

class TaskOutputTest : public ::testing::Test {
 protected:
  TaskOutput make(bool terminal, const std::filesystem::path& log_dir = {}) {
    options.log_dir = log_dir;
    return TaskOutput({.out_is_terminal = terminal,
                       .err_is_terminal = terminal,
                       .log_dir = options.log_dir,
                       .tee = options.tee,
                       .only = options.only,
                       .timestamps = options.timestamps,
                       .write =
                           [this](int fd, std::string_view text) {
                             written[fd] += text;
                             return errors[fd];
                           },
                       .columns = [this] { return columns; }},
                      {"ps/0", "worker/0"});
  }
  TaskOutput::Options options;  // what a test wants otherwise
  std::map<int, std::string> written;
  std::map<int, int> errors;
  int columns = 0;
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

// Of a program of another system, whose pipe was read between the two.
TEST_F(TaskOutputTest, ACarriageReturnAndANewlineEndALineAlsoWhenTheyComeApart) {
  auto output = make(false);
  for (const char* part : {"one\r\ntwo\r", "\n", "three\r", "\r", "\nfour", "\r\n", "\r", "live\r", "five\n"})
    output.write(0, 1, part);
  EXPECT_EQ(written[1],
            "ps/0     | one\nps/0     | two\nps/0     | three\nps/0     | four\nps/0     | five\n");
}

TEST_F(TaskOutputTest, WhatTurnsOutToBeALineIsNoLiveLineAnyMore) {
  auto output = make(true);
  output.write(1, 2, "done\r");
  written.clear();
  output.write(1, 2, "\n");
  EXPECT_EQ(written[2], "\r\x1b[K\x1b[33mworker/0 |\x1b[0m done\n\x1b[33mworker/0 |\x1b[0m done\r\x1b[K");
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

TEST_F(TaskOutputTest, ALiveLineFitsTheTerminalAlsoWhenItIsResized) {
  auto output = make(true);
  columns = 20;
  output.write(1, 2, "0123456789\x1b[K\r");
  EXPECT_EQ(written[2], "\r\x1b[K\x1b[33mworker/0 |\x1b[0m 01234567");
  written.clear();
  columns = 14;
  output.say("x");
  EXPECT_EQ(written[2], "\r\x1b[Kmuster   | x\n\x1b[33mworker/0 |\x1b[0m 01");
}

TEST_F(TaskOutputTest, ALiveLineThatWasNotFinishedIsEnded) {
  {
    auto output = make(true);
    output.write(1, 2, "50%\x1b[K\r");
  }
  EXPECT_EQ(written[2], "\r\x1b[K\x1b[33mworker/0 |\x1b[0m 50%\n");
}

TEST_F(TaskOutputTest, WhatTheLauncherSaysInSeveralLinesIsItsOwnInEach) {
  auto output = make(true);
  output.warn("one\ntwo");
  EXPECT_EQ(written[2], "muster   | \x1b[1;31mone\x1b[0m\nmuster   | \x1b[1;31mtwo\x1b[0m\n");
}

TEST_F(TaskOutputTest, WithoutATerminalThereIsNoLiveLineAndNoColour) {
  auto output = make(false);
  output.write(1, 1, "50%\x1b[K\r");
  EXPECT_EQ(written[1], "");
  output.write(1, 1, "windows\r\n");
  EXPECT_EQ(written[1], "worker/0 | windows\n");
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class TaskOutputFilesTest : public TaskOutputTest {
 protected:
  TaskOutputFilesTest() { std::filesystem::create_directories(folder); }
  ~TaskOutputFilesTest() override { std::filesystem::remove_all(folder); }
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("output_test." + std::to_string(getpid()));
};

TEST_F(TaskOutputFilesTest, EachTaskAndTheLauncherHaveALogFile) {
  {
    auto output = make(true, folder / "deep");
    output.write(1, 1, "one\n");
    output.write(1, 2, "two\n");
    output.warn("the job failed");
  }
  EXPECT_EQ(text_of(folder / "deep" / "worker-0.log"), "one\ntwo\n");
  EXPECT_EQ(text_of(folder / "deep" / "launcher.log"), "the job failed\n");
  EXPECT_TRUE(std::filesystem::exists(folder / "deep" / "ps-0.log"));
  EXPECT_THROW(make(false, "/proc/nowhere"), SystemError);
}

TEST_F(TaskOutputFilesTest, AFullDiskIsSaidAtOnceAndAtTheEnd) {
  std::filesystem::create_symlink("/dev/full", folder / "worker-0.log");
  {
    auto output = make(false, folder);
    for (int i = 0; i < 3; ++i) output.write(1, 1, "line\n");
    EXPECT_EQ(written[2], fmt::format("muster   | {} can't be written: No space left on device (ENOSPC)\n",
                                      (folder / "worker-0.log").string()));
    written.clear();
  }
  EXPECT_EQ(written[2], fmt::format("muster   | {} is not complete: 3 lines could not be written: No space "
                                    "left on device (ENOSPC)\n",
                                    (folder / "worker-0.log").string()));
}

TEST_F(TaskOutputFilesTest, WhatIsShownIsKeptInOneFileToo) {
  options.tee = folder / "all.log";
  options.only = {"worker"};
  {
    auto output = make(true, folder);
    output.write(1, 1, "one\n");
    output.write(0, 1, "two\n");
    output.say("three");
  }
  EXPECT_EQ(text_of(folder / "all.log"), "worker/0 | one\nmuster   | three\n");
  EXPECT_EQ(text_of(folder / "ps-0.log"), "two\n");
}

TEST_F(TaskOutputFilesTest, LinesCanHaveTheTime) {
  options.timestamps = true;
  {
    auto output = make(false, folder);
    output.write(1, 1, "one\n");
  }
  const std::string time = "[0-9][0-9]:[0-9][0-9]:[0-9][0-9]\\.[0-9][0-9][0-9] ";
  EXPECT_THAT(written[1], ::testing::MatchesRegex(time + "worker/0 . one\n"));
  EXPECT_THAT(text_of(folder / "worker-0.log"), ::testing::MatchesRegex(time + "one\n"));
}

TEST_F(TaskOutputTest, OnlySomeTasksAreShown) {
  options.only = {"worker/0"};
  auto output = make(true);
  output.write(0, 1, "of the server\n");
  output.write(0, 2, "50%\r");
  output.write(1, 1, "of the worker\n");
  EXPECT_EQ(written[1], "\x1b[33mworker/0 |\x1b[0m of the worker\n");
  EXPECT_EQ(written[2], "");
  EXPECT_THAT(output.last_lines(0), ElementsAre("of the server"));
}

TEST_F(TaskOutputTest, OutputThatCantBeWrittenIsSaidOnceAndAReaderWhoIsGoneIsKnown) {
  auto output = make(false);
  errors[1] = ENOSPC;
  output.write(1, 1, "one\ntwo\n");
  EXPECT_EQ(written[2], "muster   | standard output can't be written: No space left on device (ENOSPC)\n");
  EXPECT_FALSE(output.reader_is_gone());
  errors[1] = EPIPE;
  output.write(1, 1, "three\n");
  EXPECT_TRUE(output.reader_is_gone());
}

TEST_F(TaskOutputTest, TheLauncherSpeaksOnStandardError) {
  auto output = make(true);
  output.say("3 tasks");
  EXPECT_EQ(written[2], "muster   | 3 tasks\n");
  written.clear();
  output.warn("failed");
  EXPECT_EQ(written[2], "muster   | \x1b[1;31mfailed\x1b[0m\n");
}

TEST_F(TaskOutputTest, AFileToKeepThatIsAPipeNobodyReadsIsRefusedAtOnce) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("muster-fifo-{}", ::getpid());
  std::filesystem::create_directories(folder);
  options.tee = folder / "pipe";
  ASSERT_EQ(::mkfifo(options.tee.c_str(), 0600), 0);
  try {
    make(false);
    ADD_FAILURE() << "it was taken";
  } catch (const SystemError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("a pipe that nobody reads: start its reader first"));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace muster::detail
