#include "muster/train/kept_states.h"

#include <algorithm>
#include <utility>

namespace muster::detail {

void KeptStates::take(Strategy& from, size_t states) {
  const FlatLayout& layout = from.layout();
  for (size_t i = 0; i < layout.size(); ++i) {
    State state = {.updates = from.updates(i)};
    for (size_t k = 0; k < states && from.initialises(); ++k) {
      const std::byte* begin = from.state(k) + layout.state_offset(i);
      state.values.emplace_back(begin, begin + layout[i].count() * size_of(layout[i].state_dtype()));
    }
    states_[layout[i].to_string()] = std::move(state);
  }
}

void KeptStates::give(Strategy& to) {
  const FlatLayout& layout = to.layout();
  for (size_t i = 0; i < layout.size(); ++i) {
    const auto found = states_.extract(layout[i].to_string());
    if (found.empty()) continue;
    to.set_updates(i, found.mapped().updates);
    const auto& values = found.mapped().values;
    for (size_t k = 0; k < values.size(); ++k)
      std::copy(values[k].begin(), values[k].end(), to.state(k) + layout.state_offset(i));
  }
}

}  // namespace muster::detail
