#include "muster/observe/chrome_trace.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::SizeIs;

nlohmann::json written(const std::vector<ChromeSpan>& spans) {
  std::ostringstream out;
  write_chrome_trace(out, spans);
  return nlohmann::json::parse(out.str()).at("traceEvents");
}

TEST(ChromeTrace, ASpanIsAnEventOfItsProcess) {
  const auto events =
      written({{.process = "a", .name = "x", .category = "op", .start = 1500ns, .duration = 2us},
               {.process = "b", .name = "y", .category = "op", .start = 4us, .duration = 1us},
               {.process = "a", .name = "z", .category = "op", .start = 5us, .duration = 1us}});
  ASSERT_THAT(events, SizeIs(5)) << "three, and the names of two processes";
  EXPECT_EQ(events[0].at("ph"), "M");
  EXPECT_EQ(events[0].at("args").at("name"), "a");
  EXPECT_EQ(events[1].at("ph"), "X");
  EXPECT_EQ(events[1].at("name"), "x");
  EXPECT_EQ(events[1].at("cat"), "op");
  EXPECT_EQ(events[1].at("ts"), 1.5);
  EXPECT_EQ(events[1].at("dur"), 2);
  EXPECT_EQ(events[2].at("args").at("name"), "b");
  EXPECT_NE(events[3].at("pid"), events[1].at("pid"));
  EXPECT_EQ(events[4].at("pid"), events[1].at("pid"));
}

TEST(ChromeTrace, NamesMayBeAnything) {
  const auto events = written({{.process = "p", .name = "\"\\\n\xff", .category = ""}});
  EXPECT_EQ(events[1].at("name"), "\"\\\n\xEF\xBF\xBD");
  EXPECT_THAT(written({}), SizeIs(0));
}

}  // namespace
}  // namespace muster::detail
