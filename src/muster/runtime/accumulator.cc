#include "muster/runtime/accumulator.h"

#include <algorithm>

#include <ATen/ops/add.h>
#include <ATen/ops/div.h>

#include "muster/base/error.h"
#include "muster/base/log.h"

namespace muster::detail {

void Accumulator::keep(int worker, uint64_t sequence, const at::Tensor& gradient) {
  if (!is_finite(gradient))
    raise<InvalidArgument>(
        "the gradient of the variable '{}' that worker {} computed is not finite: it is not used",
        variable_.name(), worker);
  const MutexLock lock(mutex_);
  kept_[worker].push_back({sequence, gradient.detach()});
}

void Accumulator::carry_out(const CommandList& list, const UpdateRule& rule) {
  const MutexLock lock(mutex_);
  if (list.coordinator != coordinator_) {
    // Gradients that the last one has not used go with the next ones of their workers that are used: some
    // here may be the new one's already.
    coordinator_ = list.coordinator;
    carried_out_ = 0;
    sum_ = at::Tensor();
  }
  for (const auto& [number, command] : list.commands) {
    if (number <= carried_out_) continue;
    if (command.kind == Command::Kind::kAccumulate) sum_ = sum_with(command.sources);
    if (command.kind == Command::Kind::kApply) {
      const at::Tensor sum = sum_with(command.sources);
      if (sum.defined())
        variable_.update(rule, command.divisor == 1 ? sum : at::div(sum, command.divisor), command.lr);
      sum_ = at::Tensor();
    }
    for (const auto& source : command.sources)
      forget(source, /*with_earlier=*/command.kind != Command::Kind::kDrop);
    carried_out_ = number;
  }
}

at::Tensor Accumulator::sum_with(const std::vector<GradientSource>& sources) const {
  at::Tensor sum = sum_;
  for (const auto& source : sources) {
    const auto kept = kept_.find(source.worker);
    const Kept* found = nullptr;
    if (kept != kept_.end()) {
      for (const auto& each : kept->second) {
        if (each.sequence == source.sequence) found = &each;
      }
    }
    if (found == nullptr) {
      log_warning("the gradient of the variable '{}' that worker {} computed is lost: updating without it",
                  variable_.name(), source.worker);
      continue;
    }
    sum = sum.defined() ? at::add(sum, found->gradient) : found->gradient;
  }
  return sum;
}

// What a worker kept before a gradient that was used is of runs that failed, and nobody will ask for it.
void Accumulator::forget(const GradientSource& source, bool with_earlier) {
  auto& kept = kept_[source.worker];
  const auto found = std::find_if(kept.rbegin(), kept.rend(),
                                  [&](const Kept& each) { return each.sequence == source.sequence; });
  if (found == kept.rend()) return;
  kept.erase(with_earlier ? kept.begin() : found.base() - 1, found.base());
}

}  // namespace muster::detail
