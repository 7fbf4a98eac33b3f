#include "muster/ps/phase_rules.h"

#include <algorithm>
#include <utility>

namespace muster {

int PolicyState::living() const {
  return static_cast<int>(std::ranges::count_if(workers, &WorkerState::living));
}

int PolicyState::active() const {
  return static_cast<int>(std::ranges::count_if(workers, &WorkerState::active));
}

int PolicyState::expected() const {
  return static_cast<int>(std::ranges::count_if(workers, &WorkerState::expected));
}

Source PolicyState::source(int index, const Push& push, double unit) const {
  return {.worker = index,
          .sequence = push.sequence,
          .weight = push.weight / unit,
          .incarnation = worker(index).incarnation};
}

Order& PolicyState::order(Order::Kind kind, std::vector<Source> sources) {
  return decision.orders.emplace_back(
      Order{.kind = kind, .sources = std::move(sources), .version = version, .step = step});
}

void PolicyState::drop(int index, const Push& push, Answer::Verdict verdict) {
  order(Order::Kind::kDrop,
        {{.worker = index, .sequence = push.sequence, .incarnation = worker(index).incarnation}});
  worker(index).fate = {.verdict = verdict, .staleness = version - push.version};
  ++(verdict == Answer::Verdict::kSkipped ? counts[index].skipped : counts[index].dropped);
}

}  // namespace muster
