#include "muster/collective/native/memory_executor.h"

#include <algorithm>

#include "muster/base/copy.h"
#include "muster/base/error.h"

namespace muster {
namespace {

// Up to here a card costs less than to meet twice, even when the data could be read where it is.
constexpr size_t kAlwaysOnCard = 512;

// Work that is shared out: large enough that taking it costs nothing, small enough that nobody waits for
// long.
constexpr size_t kSharedPart = size_t{8} * 1024;
constexpr size_t kMostParts = 256;

size_t offset_in_arena(const Arena& arena, const void* data, size_t bytes) {
  return data != nullptr && arena.contains(data, bytes) ? arena.offset_of(data) : 0;
}

Reduction reduction_of(const Operation& operation, bool final, int ranks) {
  return {.dtype = operation.dtype,
          .op = operation.op,
          .divisor = final && operation.op == ReduceOp::kAverage ? ranks : 1};
}

// How much of the input other ranks may read.
size_t input_elements(const Operation& operation, int ranks) {
  const bool many =
      operation.collective == Collective::kReduceScatter || operation.collective == Collective::kAllToAll;
  return operation.count * static_cast<size_t>(many ? ranks : 1);
}

}  // namespace

MemoryExecutor::MemoryExecutor(HostGroup& group, size_t segment)
    : group_(group),
      segment_(segment),
      buffer_((segment + kMostOnHost * sizeof(double) + kCacheLine - 1) / kCacheLine * kCacheLine) {}

void MemoryExecutor::run(const Context& context, const Plan& plan) {
  const Operation& operation = context.operation;
  const auto& steps = plan.stages.front().steps;
  if (plan.algorithm == Algorithm::kExchange) return exchange(context, steps.front());
  const size_t bytes = input_elements(operation, group_.size()) * size_of(operation.dtype);
  group_.arrive(context, offset_in_arena(group_.arena(), operation.in, bytes), nullptr, 0);
  if (bytes == 0) return;
  const bool zero_copy = every_sender_in_arena(operation);
  if (operation.collective != Collective::kAllReduce) {
    one_step(context, steps.front(), zero_copy);
  } else if (zero_copy) {
    all_reduce_zero_copy(context, steps.front(), plan.blocks);
  } else if (group_.size() == 2) {
    // Between two, to show everything and let both reduce it moves as much as to share the work, and they
    // meet half as often.
    one_step(context, steps.front(), false);
  } else {
    all_reduce_staged(context, plan);
  }
}

bool MemoryExecutor::every_sender_in_arena(const Operation& operation) const {
  for (int i = 0; i < group_.size(); ++i) {
    const bool is_root = group_.peer(i).rank == operation.peer;
    if (operation.collective == Collective::kBroadcast && !is_root) continue;
    if (operation.collective == Collective::kReduce && is_root) continue;
    if (group_.card(i).place == 0) return false;
  }
  return true;
}

void MemoryExecutor::exchange(const Context& context, const Step& step) {
  const Operation& operation = context.operation;
  MUSTER_CHECK(operation.bytes() <= kCardBytes);
  group_.arrive(context, 0, operation.in, operation.bytes());
  reduce_from_cards(context, step);
}

void MemoryExecutor::run_small(const Context& context, const Plan& exchange_plan, const Plan& direct_plan) {
  const Operation& operation = context.operation;
  const Step& step = exchange_plan.stages.front().steps.front();
  if (operation.bytes() <= kAlwaysOnCard) return exchange(context, step);
  const size_t place = offset_in_arena(group_.arena(), operation.in, operation.bytes());
  group_.arrive(context, place, operation.in, place == 0 ? operation.bytes() : 0);
  int placed = 0;
  for (int i = 0; i < group_.size(); ++i) placed += group_.card(i).place != 0 ? 1 : 0;
  if (placed == 0) return reduce_from_cards(context, step);
  if (placed < group_.size()) return all_reduce_staged(context, direct_plan);
  all_reduce_zero_copy(context, direct_plan.stages.front().steps.front(), direct_plan.blocks);
}

void MemoryExecutor::reduce_from_cards(const Context& context, const Step& step) {
  const Operation& operation = context.operation;
  if (operation.count == 0 || operation.collective == Collective::kBarrier) return;
  std::array<const void*, kMostOnHost> cards{};
  const auto sources = std::span(cards).first(static_cast<size_t>(group_.size()));
  for (int i = 0; i < group_.size(); ++i) {
    sources[static_cast<size_t>(i)] = i == group_.index() ? operation.in : group_.card(i).data.data();
  }
  const bool final = !step.receives.empty() && step.receives.front().final;
  kernels().reduce(reduction_of(operation, final, static_cast<int>(context.ranks.size())), sources,
                   {&operation.out, 1}, operation.count);
}

// Only we read our block in the others' memory, so we may also write the result there: everyone has it when
// everyone is done, and nobody copies anything. When ranks have to wait for a core, those that run do the
// work of all: the others find it done.
void MemoryExecutor::all_reduce_zero_copy(const Context& context, const Step& step, int blocks) {
  const Operation& operation = context.operation;
  const size_t size = size_of(operation.dtype);
  const Reduction reduction = reduction_of(operation, true, group_.size());
  const auto reduce = [&](const Layout& layout, const Blocks& part) {
    std::array<void*, kMostOnHost> places{};
    std::array<const void*, kMostOnHost> sources{};
    const auto ranks = static_cast<size_t>(group_.size());
    const size_t begin = layout.begin(part.begin);
    for (size_t i = 0; i < ranks; ++i) {
      const int peer = static_cast<int>(i);
      places[i] = group_.peer(peer).arena->at(group_.card(peer).place) + begin * size;
      sources[i] = places[i];
    }
    kernels().reduce(reduction, std::span(sources).first(ranks), std::span(places).first(ranks),
                     layout.begin(part.end) - begin);
  };
  if (group_.crowded()) {
    const auto parts = static_cast<int>(std::clamp<size_t>(operation.bytes() / kSharedPart, 1, kMostParts));
    const Layout layout(operation.count, parts, kCacheLine / size);
    return group_.share_out(context, static_cast<uint32_t>(parts), [&](uint32_t part) {
      reduce(layout, {static_cast<int>(part), static_cast<int>(part) + 1});
    });
  }
  reduce(Layout(operation.count, blocks, kCacheLine / size), step.receives.front().blocks);
  group_.tick();
  group_.wait_for_all(context, group_.ticks());
}

// Piece by piece. Of each piece a rank stages the blocks that others reduce, reduces its own block from what
// they staged into its memory and into a second buffer, and copies the others' blocks from theirs. The next
// piece is staged before the results of this one are waited for.
//
// Ticks, for pieces 0 .. k-1: staged 0, staged 1, reduced 0, staged 2, reduced 1, ..., reduced k-1. With two
// buffers of each kind, what a rank overwrites was read by all: to stage t + 1 it has waited for reduced t -
// 1; to reduce t, for staged t, which a rank does after it has copied t - 2.
void MemoryExecutor::all_reduce_staged(const Context& context, const Plan& plan) {
  const Operation& operation = context.operation;
  const size_t size = size_of(operation.dtype);
  const size_t piece = std::max<size_t>(segment_ / size, static_cast<size_t>(group_.size()));
  const size_t pieces = (operation.count + piece - 1) / piece;
  const auto& reduce_step = plan.stages.front().steps[0];
  const Blocks mine = reduce_step.receives.front().blocks;
  auto* const data = static_cast<std::byte*>(operation.out);
  group_.staging(4 * buffer_);
  const auto staged = [&](int i, size_t t) { return group_.staging_of(i) + (t % 2) * buffer_; };
  const auto reduced = [&](int i, size_t t) { return group_.staging_of(i) + (2 + t % 2) * buffer_; };
  const auto layout_of = [&](size_t t) {
    return Layout(std::min(piece, operation.count - t * piece), plan.blocks, kCacheLine / size);
  };
  const uint64_t start = group_.ticks();
  const auto staged_tick = [&](size_t t) { return start + (t == 0 ? 1 : 2 * t); };
  const auto reduced_tick = [&](size_t t) { return start + (t + 1 == pieces ? 2 * pieces : 2 * t + 3); };

  const auto stage = [&](size_t t) {
    const Layout layout = layout_of(t);
    for (const auto& send : reduce_step.sends) {
      const size_t begin = layout.begin(send.blocks.begin);
      copy_bytes(staged(group_.index(), t) + begin * size, data + (t * piece + begin) * size,
                 (layout.begin(send.blocks.end) - begin) * size);
    }
    group_.tick();
  };

  std::vector<const void*> sources(static_cast<size_t>(group_.size()));
  stage(0);
  for (size_t t = 0; t < pieces; ++t) {
    if (t + 1 < pieces) stage(t + 1);
    group_.wait_for_all(context, staged_tick(t));
    const Layout layout = layout_of(t);
    const size_t begin = layout.begin(mine.begin);
    std::byte* const own = data + (t * piece + begin) * size;
    for (int i = 0; i < group_.size(); ++i) {
      sources[static_cast<size_t>(i)] = i == group_.index() ? own : staged(i, t) + begin * size;
    }
    const std::array<void*, 2> results = {own, reduced(group_.index(), t) + begin * size};
    kernels().reduce(reduction_of(operation, true, group_.size()), sources, results,
                     layout.begin(mine.end) - begin);
    group_.tick();
    for (const auto& receive : plan.stages.front().steps[1].receives) {
      const int i = group_.index_of(receive.peer);
      group_.wait_for_tick(context, i, reduced_tick(t));
      const size_t from = layout.begin(receive.blocks.begin);
      copy_bytes(data + (t * piece + from) * size, reduced(i, t) + from * size,
                 (layout.begin(receive.blocks.end) - from) * size);
    }
  }
}

// Collectives of one step, and an all-reduce of two: show what others read, then take what is for us. Blocks
// of `count` elements are moved piece by piece when staged, whole when not.
void MemoryExecutor::one_step(const Context& context, const Step& step, bool zero_copy) {
  const Operation& operation = context.operation;
  const Collective collective = operation.collective;
  const size_t size = size_of(operation.dtype);
  const bool by_block = collective == Collective::kReduceScatter || collective == Collective::kAllToAll;
  const size_t shown_blocks = by_block ? static_cast<size_t>(group_.size()) : 1;
  const size_t piece =
      zero_copy ? operation.count : std::max<size_t>(segment_ / size / shown_blocks, size_t{1});
  const size_t pieces = (operation.count + piece - 1) / piece;
  const auto* const in = static_cast<const std::byte*>(operation.in);
  auto* const out = static_cast<std::byte*>(operation.out);
  const auto own = static_cast<size_t>(group_.index());
  if (!zero_copy) group_.staging(4 * buffer_);

  const auto length_of = [&](size_t t) { return std::min(piece, operation.count - t * piece); };
  const auto show = [&](size_t t) {
    std::byte* const staging = group_.staging_of(group_.index()) + (t % 2) * buffer_;
    const size_t length = length_of(t);
    if (by_block) {
      for (const auto& send : step.sends) {
        const auto block = static_cast<size_t>(send.blocks.begin);
        copy_bytes(staging + block * length * size, in + (block * operation.count + t * piece) * size,
                   length * size);
      }
    } else if (!step.sends.empty()) {
      copy_bytes(staging, in + t * piece * size, length * size);
    }
    group_.tick();
  };
  // What peer i shows us of piece t.
  const auto shown = [&](int i, size_t t) -> const std::byte* {
    const size_t block = by_block ? own : 0;
    if (i == group_.index()) return in + (block * operation.count + t * piece) * size;
    if (zero_copy) {
      return group_.peer(i).arena->at(group_.card(i).place) + (block * operation.count + t * piece) * size;
    }
    return group_.staging_of(i) + (t % 2) * buffer_ + block * length_of(t) * size;
  };
  const auto take = [&](size_t t) {
    if (collective == Collective::kBarrier) return;  // to have met is all
    const size_t length = length_of(t);
    if (collective == Collective::kReduceScatter || collective == Collective::kReduce ||
        collective == Collective::kAllReduce) {
      if (step.receives.empty()) return;
      std::vector<const void*> sources;
      for (int i = 0; i < group_.size(); ++i) sources.push_back(shown(i, t));
      void* const result = out + t * piece * size;
      return kernels().reduce(reduction_of(operation, true, group_.size()), sources, {&result, 1}, length);
    }
    const auto place = [&](size_t block) {
      return out + (collective == Collective::kBroadcast ? 0 : block * operation.count) * size +
             t * piece * size;
    };
    for (const auto& receive : step.receives) {
      const int i = group_.index_of(receive.peer);
      copy_bytes(place(static_cast<size_t>(i)), shown(i, t), length * size);
    }
    if (collective != Collective::kBroadcast && place(own) != shown(group_.index(), t)) {
      copy_bytes(place(own), shown(group_.index(), t), length * size);
    }
  };

  if (zero_copy) {
    take(0);
    group_.tick();
    return group_.wait_for_all(context, group_.ticks());
  }
  // Ticks as above, with "taken" for "reduced"; at the end all have taken all, and the buffers are free.
  const uint64_t start = group_.ticks();
  const auto shown_tick = [&](size_t t) { return start + (t == 0 ? 1 : 2 * t); };
  const auto taken_tick = [&](size_t t) { return start + (t + 1 == pieces ? 2 * pieces : 2 * t + 3); };
  show(0);
  for (size_t t = 0; t < pieces; ++t) {
    if (t + 1 < pieces) {
      if (t > 0) group_.wait_for_all(context, taken_tick(t - 1));
      show(t + 1);
    }
    group_.wait_for_all(context, shown_tick(t));
    take(t);
    group_.tick();
  }
  group_.wait_for_all(context, taken_tick(pieces - 1));
}

void MemoryExecutor::arrive(const Context& context) {
  const Operation& operation = context.operation;
  const size_t place = offset_in_arena(group_.arena(), operation.out, operation.bytes());
  MUSTER_CHECK(place != 0 || operation.count == 0);
  group_.arrive(context, place, nullptr, 0);
}

void MemoryExecutor::run_stage(const Context& context, const Plan& plan, const Stage& stage) {
  const Operation& operation = context.operation;
  const size_t size = size_of(operation.dtype);
  const Layout layout(operation.count, plan.blocks);
  group_.tick();  // what was done before this stage can be read
  for (const auto& step : stage.steps) {
    std::vector<const void*> sources;
    const auto source = [&](int i, const Blocks& blocks) -> const std::byte* {
      return group_.peer(i).arena->at(group_.card(i).place) + layout.begin(blocks.begin) * size;
    };
    for (const auto& receive : step.receives) {
      if (receive.action == Action::kReduce) continue;
      const int i = group_.index_of(receive.peer);
      group_.wait_for_tick(context, i, group_.ticks());
      const size_t begin = layout.begin(receive.blocks.begin);
      copy_bytes(static_cast<std::byte*>(operation.out) + begin * size, source(i, receive.blocks),
                 (layout.begin(receive.blocks.end) - begin) * size);
    }
    if (step.receives.empty() || step.receives.front().action != Action::kReduce) continue;
    const Receive& first = step.receives.front();
    for (int i = 0; i < group_.size(); ++i) sources.push_back(source(i, first.blocks));
    void* const result = const_cast<std::byte*>(source(group_.index(), first.blocks));
    kernels().reduce(reduction_of(operation, first.final, static_cast<int>(context.ranks.size())), sources,
                     {&result, 1}, layout.begin(first.blocks.end) - layout.begin(first.blocks.begin));
  }
}

void MemoryExecutor::leave(const Context& context) {
  group_.tick();
  group_.wait_for_all(context, group_.ticks());
}

}  // namespace muster
