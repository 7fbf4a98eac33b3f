// The example with two models as users run it: in every strategy, with two and three workers.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/testing/process_cluster.h"
#include "muster/testing/test_main.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using testing::beside_self;
using ::testing::HasSubstr;
using testing::ProcessCluster;

ProcessCluster::Result run(const std::vector<std::string>& command) {
  ProcessCluster cluster;
  const int process = cluster.start({.command = command, .environment = {{"OMP_NUM_THREADS", "1"}}});
  return cluster.wait(process, Deadline::after(150s));
}

struct Case {
  std::string strategy;
  int workers = 2;
};

class Gan : public ::testing::TestWithParam<Case> {};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* strategy : {"allreduce", "ps-sync", "ps-async", "ps-ssp", "ps-local"}) {
    for (const int workers : {2, 3}) cases.push_back({strategy, workers});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, Gan, ::testing::ValuesIn(all_cases()), [](const auto& instance) {
  std::string name = fmt::format("{}With{}Workers", instance.param.strategy, instance.param.workers);
  std::erase(name, '-');
  return name;
});

TEST_P(Gan, TrainsBothModelsAndEveryTaskEnds) {
  std::vector<std::string> command = {beside_self("muster"), "run",
                                      "--workers",           std::to_string(GetParam().workers),
                                      "--strategy",          GetParam().strategy};
  if (GetParam().strategy == "ps-ssp") command.insert(command.end(), {"--staleness", "3"});
  if (GetParam().strategy == "ps-local") command.insert(command.end(), {"--sync-every", "4"});
  command.insert(command.end(), {"--", beside_self("gan"), "--steps", "60", "--batch", "32"});
  const auto result = run(command);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("of the generator's points are in a cloud"));
  EXPECT_THAT(result.output, ::testing::Not(HasSubstr("is gone")));
}

TEST(GanAlone, FindsMostOfTheClouds) {
  const auto result = run({beside_self("gan")});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, ::testing::ContainsRegex("in [5-8] of 8 clouds"));
}

}  // namespace
}  // namespace muster::detail

int main(int argc, char** argv) {
  return muster::detail::testing::run_tests(argc, argv);
}
