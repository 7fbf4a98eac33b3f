#include "muster/cluster/cluster_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

using ::testing::HasSubstr;

std::string message_of(const char* text) {
  try {
    ClusterSpec::parse(text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ClusterSpec, ComesFromJsonFromAFlagAndFromCode) {
  const auto json = ClusterSpec::parse(R"({"ps": ["h1:2222"], "worker": ["h2:2222", "h3:2222"]})");
  const auto flag = ClusterSpec::parse("ps=h1:2222;worker=h2:2222,h3:2222");
  const ClusterSpec code({{"ps", {{0, {"h1", 2222}}}}, {"worker", {{0, {"h2", 2222}}, {1, {"h3", 2222}}}}});
  EXPECT_EQ(json, flag);
  EXPECT_EQ(json, code);
  EXPECT_EQ(json.count("worker"), 2);
  EXPECT_EQ(json.count("evaluator"), 0);
  EXPECT_EQ(json.address(TaskName::of("worker", 1)).to_string(), "h3:2222");
  EXPECT_EQ(ClusterSpec::parse(json.to_json()), json);
}

TEST(ClusterSpec, IndicesMayBeSparse) {
  const auto json = ClusterSpec::parse(R"({"worker": {"0": "h1:1", "3": "h2:1"}})");
  EXPECT_EQ(json, ClusterSpec::parse("worker=0@h1:1,3@h2:1"));
  EXPECT_EQ(json.count("worker"), 2);
  EXPECT_EQ(json.address(TaskName::of("worker", 3)).host, "h2");
  EXPECT_THROW(json.address(TaskName::of("worker", 1)), InvalidArgument);
  EXPECT_EQ(ClusterSpec::parse(json.to_json()), json);
}

TEST(ClusterSpec, MistakesAreRejectedByName) {
  EXPECT_THAT(message_of(R"({"worker": []})"), HasSubstr("job 'worker' has no tasks"));
  EXPECT_THAT(message_of("worker="), HasSubstr("job 'worker' has no tasks"));
  EXPECT_THAT(message_of(R"({"worker": ["h1:1", "h1:1"]})"),
              HasSubstr("h1:1 to both /job:worker/task:0 and /job:worker/task:1"));
  EXPECT_THAT(message_of(R"({"ps": ["h1:1"], "worker": ["h1:1"]})"), HasSubstr("h1:1 to both"));
  EXPECT_THAT(message_of(R"({"worker": ["h1:99999"]})"), HasSubstr("job 'worker' has a bad address"));
  EXPECT_THAT(message_of(R"({"worker": ["h1"]})"), HasSubstr("no port"));
  EXPECT_THAT(message_of(R"({"worker": {"x": "h1:1"}})"), HasSubstr("bad task index 'x'"));
  EXPECT_THAT(message_of("worker=1@h1:1,1@h2:1"), HasSubstr("task 1 twice"));
  EXPECT_THAT(message_of(R"({"worker": ["h1:1"], "worker": ["h2:1"]})"), HasSubstr("job 'worker' twice"));
  EXPECT_THAT(message_of("worker=h1:1;worker=h2:1"), HasSubstr("job 'worker' twice"));
  EXPECT_THAT(message_of(R"({"worker": [1]})"), HasSubstr("1 where an address"));
  EXPECT_THAT(message_of(R"({"worker": "h1:1"})"), HasSubstr("must be a list"));
  EXPECT_THAT(message_of(R"({"wor ker": ["h1:1"]})"), HasSubstr("wor ker"));
  EXPECT_THAT(message_of(R"({"worker": )"), HasSubstr("not valid JSON"));
  EXPECT_THAT(message_of("[]"), HasSubstr("does not describe a job"));
  EXPECT_THAT(message_of("  "), HasSubstr("empty"));
}

TEST(ClusterSpec, AnUnknownTaskIsAnsweredWithTheOnesThereAre) {
  try {
    ClusterSpec::parse("worker=h1:1").address(TaskName::of("ps", 0));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("no task /job:ps/task:0; it has /job:worker/task:0"));
  }
}

}  // namespace
}  // namespace muster::detail
