// The hooks of muster/monitored_session.h that are ready made.

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/monitored_session.h"

namespace muster {

namespace {

using Clock = std::chrono::steady_clock;

// When a hook is to do its work again.
class Schedule {
 public:
  Schedule(Every every, const char* hook) : every_(every) {
    if (every.steps < 0 || every.time.count() < 0 || (every.steps == 0 && every.time.count() == 0))
      detail::raise<InvalidArgument>("{}: every {} steps or {} ms is never; expected more than 0 of either",
                                     hook, every.steps, every.time.count());
  }

  // When variables have values, which after a loss may be those of an earlier step.
  void forget() { last_step_.reset(); }

  void before(int64_t step) {
    if (!last_step_) done(step);
  }

  bool is_due(int64_t step) const {
    return (every_.steps > 0 && steps_since(step) >= every_.steps) ||
           (every_.time.count() > 0 && Clock::now() - last_time_ >= every_.time);
  }

  void done(int64_t step) {
    last_step_ = step;
    last_time_ = Clock::now();
  }

  int64_t steps_since(int64_t step) const { return step - *last_step_; }
  double seconds_since() const { return std::chrono::duration<double>(Clock::now() - last_time_).count(); }

 private:
  const Every every_;
  std::optional<int64_t> last_step_;
  Clock::time_point last_time_;
};

std::string text_of(const at::Tensor& value) {
  constexpr int64_t kShown = 4;
  const at::Tensor elements = value.reshape(-1);
  std::string text;
  for (int64_t i = 0; i < std::min(elements.numel(), kShown); ++i) {
    const at::Scalar element = elements[i].item();
    text += i == 0 ? "" : " ";
    text += element.isFloatingPoint() ? fmt::format("{:.5g}", element.toDouble())
            : element.isComplex()     ? "?"
                                      : fmt::format("{}", element.toLong());
  }
  return elements.numel() == 1 ? text : "[" + text + (elements.numel() > kShown ? " ...]" : "]");
}

}  // namespace

SessionHook log_values(std::vector<std::pair<std::string, Output>> values, Every every) {
  struct State {
    Schedule schedule;
    std::vector<std::string> names;
    std::vector<Output> outputs;
    bool is_due = false;
  };
  // Shared by the functions of the hook.
  auto state = std::make_shared<State>(State{.schedule = Schedule(every, "log_values")});
  for (auto& [name, output] : values) {
    if (!output.defined()) detail::raise<InvalidArgument>("log_values: the value '{}' is undefined", name);
    state->names.push_back(std::move(name));
    state->outputs.push_back(output);
  }
  return {.begin = [state](Session&) { state->schedule.forget(); },
          .before_run =
              [state](int64_t step) {
                state->schedule.before(step);
                state->is_due = state->schedule.is_due(step + 1);
                return state->is_due ? state->outputs : std::vector<Output>();
              },
          .after_run =
              [state](int64_t step, const std::vector<at::Tensor>& results) {
                if (!state->is_due) return;
                std::string text;
                const size_t first = results.size() - state->names.size();
                for (size_t i = 0; i < state->names.size(); ++i)
                  text += fmt::format("{}{} {}", i == 0 ? "" : ", ", state->names[i],
                                      text_of(results[first + i]));
                detail::log_info(
                    "step {}: {} ({:.1f} steps/s)", step, text,
                    static_cast<double>(state->schedule.steps_since(step)) / state->schedule.seconds_since());
                state->schedule.done(step);
              }};
}

SessionHook save_variables(const Graph& graph, std::function<void(int64_t step, const ValuesByName&)> save,
                           Every every) {
  struct State {
    const Graph& graph;
    const std::function<void(int64_t step, const ValuesByName&)> save;
    Schedule schedule;
    Session* session = nullptr;
    int64_t saved = -1;

    void save_now(Session& from, int64_t step) {
      std::vector<Output> variables;
      for (const auto& variable : graph.variables()) {
        if (!variable.node().name().starts_with("muster/")) variables.push_back(variable);
      }
      const auto values = from.run(variables);
      ValuesByName by_name;
      for (size_t i = 0; i < values.size(); ++i) by_name.emplace(variables[i].node().name(), values[i]);
      save(step, by_name);
      saved = step;
      schedule.done(step);
    }
  };
  // Shared by the functions of the hook.
  auto state = std::make_shared<State>(
      State{.graph = graph, .save = std::move(save), .schedule = Schedule(every, "save_variables")});
  return {.begin =
              [state](Session& session) {
                state->session = &session;
                state->schedule.forget();
                state->saved = -1;
              },
          .before_run =
              [state](int64_t step) {
                state->schedule.before(step);
                return std::vector<Output>();
              },
          .after_run =
              [state](int64_t step, const std::vector<at::Tensor>&) {
                if (state->schedule.is_due(step)) state->save_now(*state->session, step);
              },
          .end =
              [state](Session& session, int64_t step) {
                if (step != state->saved) state->save_now(session, step);
              }};
}

SessionHook save_timelines(std::string folder, Every every) {
  // Shared by the functions of the hook.
  auto schedule = std::make_shared<Schedule>(every, "save_timelines");
  return {.begin = [schedule](Session&) { schedule->forget(); },
          .wants_timeline =
              [schedule](int64_t step) {
                schedule->before(step);
                return schedule->is_due(step + 1);
              },
          .timeline =
              [schedule, folder = std::move(folder)](int64_t step, const Timeline& timeline) {
                schedule->done(step);
                std::error_code ignored;  // writing says what is wrong
                std::filesystem::create_directories(folder, ignored);
                try {
                  timeline.save(fmt::format("{}/timeline-{}.json", folder, step));
                } catch (const SystemError& error) {
                  detail::log_warning("the timeline of step {} is not kept: {}", step, error.what());
                }
              }};
}

}  // namespace muster
