#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/error.h"
#include "muster/monitored_session.h"
#include "muster/net/reserved_port.h"
#include "muster/ops.h"

namespace muster {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

// A worker without parameter servers; w grows by one in each step.
struct CountingWorker {
  CountingWorker()
      : server(ClusterSpec({{"worker", {"127.0.0.1:" + std::to_string(port.port())}}}), "worker", 0,
               {.secret = "test"}) {
    x = graph.placeholder("x", at::kFloat, {2});
    w = graph.variable("w", torch::zeros({2}));
    sum = graph.assign_add(w, graph.constant(torch::ones({2})));
    step = count_step(graph, sum);
  }

  MonitoredSession session(std::vector<SessionHook> hooks, std::vector<SessionHook> chief_hooks = {}) {
    return {server,
            graph,
            {.step = step,
             .hooks = std::move(hooks),
             .chief_hooks = std::move(chief_hooks),
             .session = {.secret = "test"}}};
  }

  detail::ReservedPort port{"127.0.0.1"};
  Server server;
  Graph graph;
  Output x;
  Output w;
  Output sum;
  Output step;
};

TEST(SessionHooks, GetWhatTheyAskForBehindTheFetches) {
  CountingWorker counting;
  std::vector<int64_t> before;
  std::vector<std::vector<float>> first;
  std::vector<float> second;
  const SessionHook asks{.before_run =
                             [&](int64_t step) {
                               before.push_back(step);
                               return std::vector<Output>(step == 1 ? 2 : 0, counting.sum);
                             },
                         .after_run =
                             [&](int64_t, const std::vector<at::Tensor>& results) {
                               first.emplace_back();
                               for (const auto& result : results)
                                 first.back().push_back(result[0].item<float>());
                             }};
  const SessionHook looks{.after_run = [&](int64_t, const std::vector<at::Tensor>& results) {
    EXPECT_THAT(results, SizeIs(1));
    second.push_back(results[0][0].item<float>());
  }};
  auto session = counting.session({asks}, {looks});
  for (float i = 0; i < 3; ++i)
    EXPECT_THAT(session.run({counting.x}, {{counting.x, torch::full({2}, i)}}), SizeIs(1));
  EXPECT_THAT(before, ElementsAre(0, 1, 2));
  EXPECT_THAT(first, ElementsAre(ElementsAre(0), ElementsAre(1, 2, 2), ElementsAre(2)));
  EXPECT_THAT(second, ElementsAre(0, 1, 2));
}

TEST(SessionHooks, LogValuesEverySoManySteps) {
  CountingWorker counting;
  std::string log;
  auto session =
      counting.session({log_values({{"w", counting.sum}, {"x", ops::sum(counting.x)}}, {.steps = 3})});
  detail::set_log_sink([&](std::string_view line) { log += line; });
  for (int i = 0; i < 7; ++i) session.run({}, {{counting.x, torch::full({2}, 0.25)}});
  detail::set_log_sink({});
  EXPECT_THAT(log, ContainsRegex("step 3: w \\[3 3\\], x 0\\.5 \\([0-9.]+ steps/s\\)"));
  EXPECT_THAT(log, ContainsRegex("step 6: w \\[6 6\\], x 0\\.5 \\([0-9.]+ steps/s\\)"));
  for (const auto* step : {"step 1:", "step 2:", "step 4:", "step 5:", "step 7:"})
    EXPECT_THAT(log, Not(HasSubstr(step)));
}

TEST(SessionHooks, LogValuesEverySoMuchTime) {
  CountingWorker counting;
  std::string log;
  auto session =
      counting.session({log_values({{"w", counting.sum}}, {.time = std::chrono::milliseconds(1)})});
  detail::set_log_sink([&](std::string_view line) { log += line; });
  while (log.empty() && session.step() < 1'000'000) session.run();
  detail::set_log_sink({});
  EXPECT_THAT(log, HasSubstr(": w ["));
}

TEST(SessionHooks, SaveTheVariablesEverySoOftenAndAtTheEnd) {
  CountingWorker counting;
  std::vector<int64_t> steps;
  {
    auto session =
        counting.session({}, {save_variables(counting.graph,
                                             [&](int64_t step, const ValuesByName& values) {
                                               steps.push_back(step);
                                               EXPECT_THAT(values, SizeIs(2)) << "w and the global step";
                                               EXPECT_EQ(values.at("w")[1].item<float>(), step);
                                               EXPECT_EQ(values.at("global_step").item<int64_t>(), step);
                                             },
                                             {.steps = 2})});
    for (int i = 0; i < 5; ++i) session.run();
    EXPECT_THAT(steps, ElementsAre(2, 4));
  }
  EXPECT_THAT(steps, ElementsAre(2, 4, 5));
}

TEST(SessionHooks, SaveTimelinesEverySoManySteps) {
  CountingWorker counting;
  const std::string folder = ::testing::TempDir() + "timelines_" + detail::random_token() + "/of/run";
  auto session = counting.session({save_timelines(folder, {.steps = 3})});
  for (int i = 0; i < 7; ++i) session.run();
  std::vector<std::string> files;
  for (const auto& file : std::filesystem::directory_iterator(folder))
    files.push_back(file.path().filename());
  EXPECT_THAT(files, UnorderedElementsAre("timeline-3.json", "timeline-6.json"));
  std::ifstream stream(folder + "/timeline-6.json");
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  EXPECT_THAT(text, HasSubstr("/job:worker/task:0"));
  EXPECT_THAT(text, HasSubstr("muster::assign_add"));
  std::filesystem::remove_all(folder);
}

TEST(SessionHooks, TimelinesThatCantBeWrittenAreAWarning) {
  CountingWorker counting;
  std::string log;
  auto session = counting.session({save_timelines("/dev/null/folder", {.steps = 1})});
  detail::set_log_sink([&](std::string_view line) { log += line; });
  session.run();
  detail::set_log_sink({});
  EXPECT_THAT(log,
              HasSubstr("the timeline of step 1 is not kept: can't write '/dev/null/folder/timeline-1.json"));
}

TEST(SessionHooks, ThatNeverDoAnythingAreRefused) {
  Graph graph;
  EXPECT_THROW(log_values({}, {}), InvalidArgument);
  EXPECT_THROW(log_values({}, {.steps = -1}), InvalidArgument);
  EXPECT_THROW(log_values({{"loss", {}}}), InvalidArgument);
  EXPECT_THROW(save_variables(graph, [](int64_t, const ValuesByName&) {}, {}), InvalidArgument);
  EXPECT_THROW(save_timelines("timelines", {}), InvalidArgument);
}

}  // namespace
}  // namespace muster
