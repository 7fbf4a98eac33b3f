#include "muster/base/task_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

TEST(TaskName, ParsesAndPrintsEveryPart) {
  const auto name = TaskName::parse("/job:worker/replica:0/task:1/device:cpu:0");
  EXPECT_EQ(name.job, "worker");
  EXPECT_EQ(name.replica, 0);
  EXPECT_EQ(name.task, 1);
  EXPECT_EQ(name.device_type, "cpu");
  EXPECT_EQ(name.device_index, 0);
  EXPECT_EQ(name.to_string(), "/job:worker/replica:0/task:1/device:cpu:0");
}

TEST(TaskName, PartsMayBeMissingInAnyOrderOrWild) {
  EXPECT_EQ(TaskName::parse("/task:1/job:ps").to_string(), "/job:ps/task:1");
  EXPECT_EQ(TaskName::parse("").to_string(), "");
  EXPECT_EQ(TaskName::parse("/job:*/task:2").to_string(), "/task:2");
  EXPECT_EQ(TaskName::parse("/cpu:0"), TaskName::parse("/device:CPU:0"));
  EXPECT_EQ(TaskName::parse("/device:gpu:*").to_string(), "/device:gpu:*");
  EXPECT_EQ(TaskName::parse("/device:gpu").to_string(), "/device:gpu:*");
  EXPECT_EQ(TaskName::parse(TaskName::parse("/device:*:3").to_string()).device_index, 3);
}

TEST(TaskName, BadNamesSayWhichPartIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"job:worker", "the form job/index"},    {"worker/x", "'x' is not an index of a task"},
      {"worker/*", "it must name one task"},   {"/job:worker/task:x", "'x' is not an index of a task"},
      {"/job:worker/task:-1", "'-1'"},         {"/job:", "not the name of a job"},
      {"/job:a b", "not the name of a job"},   {"/jib:worker", "'jib' is not one of"},
      {"/job:a/job:b", "names the job twice"}, {"/job:worker/", "key:value"},
      {"/device:9:0", "'9' is not a type"}};
  for (const auto& [text, expected] : cases) {
    try {
      TaskName::parse(text);
      ADD_FAILURE() << text;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(expected)) << text;
    }
  }
}

TEST(TaskName, IsReadAsMessagesPrintIt) {
  EXPECT_EQ(TaskName::parse("worker/1"), TaskName::of("worker", 1));
  EXPECT_EQ(TaskName::parse(TaskName::of("ps", 12).short_name()), TaskName::of("ps", 12));
}

TEST(TaskName, AnInnerNameOverridesThePartsThatItHas) {
  const auto outer = TaskName::parse("/job:ps/task:0/cpu:0");
  EXPECT_EQ(outer.with(TaskName::parse("/task:1")).to_string(), "/job:ps/task:1/device:cpu:0");
  EXPECT_EQ(outer.with(TaskName::parse("/job:worker/replica:0")).to_string(),
            "/job:worker/replica:0/task:0/device:cpu:0");
  EXPECT_EQ(outer.with({}), outer);
}

TEST(TaskName, MatchesPartially) {
  const auto full = TaskName::parse("/job:worker/replica:0/task:1/device:cpu:0");
  for (const char* pattern : {"", "/job:worker", "/task:1", "/job:worker/device:cpu:0", "/device:cpu"}) {
    EXPECT_TRUE(TaskName::parse(pattern).matches(full)) << pattern;
    EXPECT_TRUE(full.matches(TaskName::parse(pattern))) << pattern;
  }
  for (const char* pattern : {"/job:ps", "/task:0", "/job:worker/device:gpu:0", "/replica:1"}) {
    EXPECT_FALSE(TaskName::parse(pattern).matches(full)) << pattern;
  }
}

TEST(TaskName, ShortNameIsForPeople) {
  EXPECT_EQ(TaskName::of("worker", 1).short_name(), "worker/1");
}

}  // namespace
}  // namespace muster::detail
