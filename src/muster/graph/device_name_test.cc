#include "muster/graph/device_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"

namespace muster::detail {
namespace {

TEST(DeviceName, PartsAreReadAndWrittenInOneOrder) {
  const DeviceName name = parse_device("/task:1/job:ps/device:CPU:0/replica:0");
  EXPECT_EQ(name.job, "ps");
  EXPECT_EQ(name.task, 1);
  EXPECT_EQ(name.to_string(), "/job:ps/replica:0/task:1/device:cpu:0");
  EXPECT_EQ(parse_device("/cpu:0").to_string(), "/device:cpu:0");
  EXPECT_EQ(parse_device("").to_string(), "");
}

TEST(DeviceName, AnInnerDeviceOverridesThePartsThatItNames) {
  EXPECT_EQ(merged_device("/job:ps/task:0", "/task:1", "n"), "/job:ps/task:1");
  EXPECT_EQ(merged_device("/job:ps/task:0", "/job:worker", "n"), "/job:worker/task:0");
  EXPECT_EQ(merged_device("/job:ps", "", "n"), "/job:ps");
}

TEST(DeviceName, WhatIsNoDeviceIsRefusedWithTheReason) {
  const auto refusal = [](const char* text) -> std::string {
    try {
      static_cast<void>(parse_device(text));
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal("job:ps"), ::testing::HasSubstr("does not begin with '/'"));
  EXPECT_THAT(refusal("/job:"), ::testing::HasSubstr("'' is no name of a job"));
  EXPECT_THAT(refusal("/job:a b"), ::testing::HasSubstr("no name of a job"));
  EXPECT_THAT(refusal("/task:x"), ::testing::HasSubstr("'x' of 'task:x'"));
  EXPECT_THAT(refusal("/task:-1"), ::testing::HasSubstr("'-1'"));
  EXPECT_THAT(refusal("/job:a/job:b"), ::testing::HasSubstr("'job:b' is its second of a kind"));
  EXPECT_THAT(refusal("/device:gpu:0"), ::testing::HasSubstr("there are only CPUs"));
  EXPECT_THAT(refusal("/gpu:0"), ::testing::HasSubstr("'gpu:0' is no part of one"));
}

}  // namespace
}  // namespace muster::detail
