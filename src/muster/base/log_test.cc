#include "muster/base/log.h"

#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

std::vector<std::string>* captured = nullptr;

class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    captured = &lines;
    set_log_sink([](std::string_view line) { captured->emplace_back(line); });
  }
  ~LogTest() override {
    set_log_sink(nullptr);
    set_log_level(LogLevel::kInfo);
    set_log_task("-");
  }
  std::vector<std::string> lines;
};

TEST_F(LogTest, ALineHasLevelTimeTaskAndPlace) {
  set_log_task("worker/1");
  log_info("hello {}", 7);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(std::string(lines[0]).find("I ") == 0) << lines[0];
  // I 12:03:04.567 worker/1 log_test.cc:35] hello 7
  EXPECT_EQ(lines[0][4], ':');
  EXPECT_EQ(lines[0][10], '.');
  EXPECT_NE(lines[0].find(" worker/1 log_test.cc:"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("] hello 7\n"), std::string::npos) << lines[0];
}

TEST_F(LogTest, ThreadsOfOneProcessCanBeDifferentTasks) {
  set_log_task("worker/0");
  std::thread([] {
    const ScopedLogTask task("ps/3");
    log_warning("from the thread");
  }).join();
  log_error("from the process");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].find("W "), std::string::npos);
  EXPECT_NE(lines[0].find(" ps/3 "), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find(" worker/0 "), std::string::npos) << lines[1];
}

TEST_F(LogTest, ScopedTaskRestoresTheOneBefore) {
  const ScopedLogTask outer("a/0");
  { const ScopedLogTask inner("b/0"); }
  log_info("x");
  EXPECT_NE(lines[0].find(" a/0 "), std::string::npos) << lines[0];
}

TEST_F(LogTest, ALineWithoutATaskNamesNone) {
  set_log_task("");
  log_info("x");
  EXPECT_EQ(lines[0].substr(14, 12), " log_test.cc") << lines[0];
}

TEST_F(LogTest, LevelsBelowTheThresholdAreSilent) {
  set_log_level(LogLevel::kWarning);
  log_info("no");
  log_debug("no");
  log_warning("yes");
  EXPECT_EQ(lines.size(), 1u);
}

TEST_F(LogTest, LinesCanBeWrittenAsTheyAre) {
  set_log_level(LogLevel::kOff);
  write_lines("one {}\ntwo\n");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], "one {}\ntwo\n");
}

TEST_F(LogTest, BracesInAnArgumentAreNotAFormat) {
  log_info("{}", "{not} {a} {format}");
  EXPECT_NE(lines[0].find("{not} {a} {format}"), std::string::npos);
}

}  // namespace
}  // namespace muster::detail
