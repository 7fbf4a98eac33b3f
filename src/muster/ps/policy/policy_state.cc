#include "muster/ps/policy/policy_state.h"

#include <algorithm>
#include <utility>

namespace muster::detail {

int PolicyState::living() const {
  return static_cast<int>(std::ranges::count_if(workers, &WorkerState::living));
}

int PolicyState::active() const {
  return static_cast<int>(std::ranges::count_if(workers, &WorkerState::active));
}

int PolicyState::expected() const {
  return static_cast<int>(std::ranges::count_if(workers, &WorkerState::expected));
}

GradientSource PolicyState::source(int index, const Push& push, double unit) const {
  return {.worker = index,
          .sequence = push.sequence,
          .weight = push.weight / unit,
          .incarnation = worker(index).incarnation};
}

Command& PolicyState::add_command(Command::Kind kind, std::vector<GradientSource> sources) {
  return decision.commands.emplace_back(
      Command{.kind = kind, .sources = std::move(sources), .version = version, .step = step});
}

void PolicyState::drop(int index, const Push& push, Answer::Outcome outcome) {
  add_command(Command::Kind::kDrop,
              {{.worker = index, .sequence = push.sequence, .incarnation = worker(index).incarnation}});
  worker(index).next_answer = {.outcome = outcome, .staleness = version - push.version};
  ++(outcome == Answer::Outcome::kSkipped ? counts[index].skipped : counts[index].dropped);
}

}  // namespace muster::detail
