#include "muster/collective/native/memory_executor.h"

#include <algorithm>

#include "muster/base/copy.h"
#include "muster/base/error.h"

namespace muster::detail {
namespace {

// Up to here to copy the data into the header slot costs less than to wait for all ranks twice, even when the
// data could be read where it is.
constexpr size_t kAlwaysInline = 512;

// Blocks of shared work: large enough that claiming one costs nothing, small enough that nobody waits for
// long.
constexpr size_t kSharedBlock = size_t{8} * 1024;
constexpr size_t kMostSharedBlocks = 256;

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

void MemoryExecutor::run(const OperationContext& context, const Plan& plan) {
  const Operation& operation = context.operation;
  const auto& steps = plan.stages.front().steps;
  if (plan.algorithm == Algorithm::kExchange) return run_exchange(context, steps.front());
  const size_t bytes = input_elements(operation, group_.size()) * size_of(operation.dtype);
  group_.begin(context, offset_in_arena(group_.arena(), operation.in, bytes), nullptr, 0);
  if (bytes == 0) return;
  const bool zero_copy = every_sender_in_arena(operation);
  if (operation.collective != Collective::kAllReduce) {
    one_step(context, steps.front(), zero_copy);
  } else if (zero_copy) {
    all_reduce_zero_copy(context, steps.front(), plan.blocks);
  } else if (group_.size() == 2) {
    // Between two, to show everything and let both reduce it moves as much as to share the work, and they
    // wait for each other half as often.
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
    if (group_.header(i).offset == 0) return false;
  }
  return true;
}

void MemoryExecutor::run_exchange(const OperationContext& context, const Step& step) {
  const Operation& operation = context.operation;
  MUSTER_CHECK(operation.bytes() <= kInlineBytes);
  group_.begin(context, 0, operation.in, operation.bytes());
  reduce_from_headers(context, step);
}

void MemoryExecutor::run_small(const OperationContext& context, const Plan& exchange_plan,
                               const Plan& direct_plan) {
  const Operation& operation = context.operation;
  const Step& step = exchange_plan.stages.front().steps.front();
  if (operation.bytes() <= kAlwaysInline) return run_exchange(context, step);
  const size_t offset = offset_in_arena(group_.arena(), operation.in, operation.bytes());
  group_.begin(context, offset, operation.in, offset == 0 ? operation.bytes() : 0);
  int in_arenas = 0;
  for (int i = 0; i < group_.size(); ++i) in_arenas += group_.header(i).offset != 0 ? 1 : 0;
  if (in_arenas == 0) return reduce_from_headers(context, step);
  if (in_arenas < group_.size()) return all_reduce_staged(context, direct_plan);
  all_reduce_zero_copy(context, direct_plan.stages.front().steps.front(), direct_plan.blocks);
}

void MemoryExecutor::reduce_from_headers(const OperationContext& context, const Step& step) {
  const Operation& operation = context.operation;
  if (operation.count == 0 || operation.collective == Collective::kBarrier) return;
  std::array<const void*, kMostOnHost> inputs{};
  const auto sources = std::span(inputs).first(static_cast<size_t>(group_.size()));
  for (int i = 0; i < group_.size(); ++i) {
    sources[static_cast<size_t>(i)] =
        i == group_.index() ? operation.in : group_.header(i).inline_data.data();
  }
  const bool final = !step.receives.empty() && step.receives.front().final;
  kernels().reduce(reduction_of(operation, final, static_cast<int>(context.ranks.size())), sources,
                   {&operation.out, 1}, operation.count);
}

// Only we read our block in the others' memory, so we may also write the result there: everyone has it when
// everyone is done, and nobody copies anything. When ranks have to wait for a core, those that run do the
// work of all: the others find it done.
void MemoryExecutor::all_reduce_zero_copy(const OperationContext& context, const Step& step, int blocks) {
  const Operation& operation = context.operation;
  const size_t size = size_of(operation.dtype);
  const Reduction reduction = reduction_of(operation, true, group_.size());
  const auto reduce = [&](const BlockLayout& layout, const Blocks& range) {
    std::array<void*, kMostOnHost> destinations{};
    std::array<const void*, kMostOnHost> sources{};
    const auto ranks = static_cast<size_t>(group_.size());
    const size_t begin = layout.begin(range.begin);
    for (size_t i = 0; i < ranks; ++i) {
      const int peer = static_cast<int>(i);
      destinations[i] = group_.peer(peer).arena->at(group_.header(peer).offset) + begin * size;
      sources[i] = destinations[i];
    }
    kernels().reduce(reduction, std::span(sources).first(ranks), std::span(destinations).first(ranks),
                     layout.begin(range.end) - begin);
  };
  if (group_.oversubscribed()) {
    const auto shared =
        static_cast<int>(std::clamp<size_t>(operation.bytes() / kSharedBlock, 1, kMostSharedBlocks));
    const BlockLayout layout(operation.count, shared, kCacheLine / size);
    return group_.share_work(context, static_cast<uint32_t>(shared), [&](uint32_t block) {
      reduce(layout, {static_cast<int>(block), static_cast<int>(block) + 1});
    });
  }
  reduce(BlockLayout(operation.count, blocks, kCacheLine / size), step.receives.front().blocks);
  group_.advance_phase();
  group_.wait_for_all(context, group_.phase());
}

// Segment by segment. Of each segment a rank stages the blocks that others reduce, reduces its own block from
// what they staged into its memory and into a second buffer, and copies the others' blocks from theirs. The
// next segment is staged before the results of this one are waited for.
//
// Phases, for segments 0 .. k-1: staged 0, staged 1, reduced 0, staged 2, reduced 1, ..., reduced k-1. With
// two buffers of each kind, what a rank overwrites was read by all: to stage t + 1 it has waited for reduced
// t - 1; to reduce t, for staged t, which a rank does after it has copied t - 2.
void MemoryExecutor::all_reduce_staged(const OperationContext& context, const Plan& plan) {
  const Operation& operation = context.operation;
  const size_t size = size_of(operation.dtype);
  const size_t segment = std::max<size_t>(segment_ / size, static_cast<size_t>(group_.size()));
  const size_t segments = (operation.count + segment - 1) / segment;
  const auto& reduce_step = plan.stages.front().steps[0];
  const Blocks mine = reduce_step.receives.front().blocks;
  auto* const data = static_cast<std::byte*>(operation.out);
  group_.staging(4 * buffer_);
  const auto staged = [&](int i, size_t t) { return group_.staging_of(i) + (t % 2) * buffer_; };
  const auto reduced = [&](int i, size_t t) { return group_.staging_of(i) + (2 + t % 2) * buffer_; };
  const auto layout_of = [&](size_t t) {
    return BlockLayout(std::min(segment, operation.count - t * segment), plan.blocks, kCacheLine / size);
  };
  const uint64_t start = group_.phase();
  const auto staged_phase = [&](size_t t) { return start + (t == 0 ? 1 : 2 * t); };
  const auto reduced_phase = [&](size_t t) { return start + (t + 1 == segments ? 2 * segments : 2 * t + 3); };

  const auto stage_segment = [&](size_t t) {
    const BlockLayout layout = layout_of(t);
    for (const auto& send : reduce_step.sends) {
      const size_t begin = layout.begin(send.blocks.begin);
      copy_bytes(staged(group_.index(), t) + begin * size, data + (t * segment + begin) * size,
                 (layout.begin(send.blocks.end) - begin) * size);
    }
    group_.advance_phase();
  };

  std::vector<const void*> sources(static_cast<size_t>(group_.size()));
  stage_segment(0);
  for (size_t t = 0; t < segments; ++t) {
    if (t + 1 < segments) stage_segment(t + 1);
    group_.wait_for_all(context, staged_phase(t));
    const BlockLayout layout = layout_of(t);
    const size_t begin = layout.begin(mine.begin);
    std::byte* const own = data + (t * segment + begin) * size;
    for (int i = 0; i < group_.size(); ++i) {
      sources[static_cast<size_t>(i)] = i == group_.index() ? own : staged(i, t) + begin * size;
    }
    const std::array<void*, 2> results = {own, reduced(group_.index(), t) + begin * size};
    kernels().reduce(reduction_of(operation, true, group_.size()), sources, results,
                     layout.begin(mine.end) - begin);
    group_.advance_phase();
    for (const auto& receive : plan.stages.front().steps[1].receives) {
      const int i = group_.index_of(receive.peer);
      group_.wait_for_phase(context, i, reduced_phase(t));
      const size_t from = layout.begin(receive.blocks.begin);
      copy_bytes(data + (t * segment + from) * size, reduced(i, t) + from * size,
                 (layout.begin(receive.blocks.end) - from) * size);
    }
  }
}

// Collectives of one step, and an all-reduce of two: show what others read, then take what is for us. Blocks
// of `count` elements are moved segment by segment when staged, whole when not.
void MemoryExecutor::one_step(const OperationContext& context, const Step& step, bool zero_copy) {
  const Operation& operation = context.operation;
  const Collective collective = operation.collective;
  const size_t size = size_of(operation.dtype);
  const bool by_block = collective == Collective::kReduceScatter || collective == Collective::kAllToAll;
  const size_t shown_blocks = by_block ? static_cast<size_t>(group_.size()) : 1;
  const size_t segment =
      zero_copy ? operation.count : std::max<size_t>(segment_ / size / shown_blocks, size_t{1});
  const size_t segments = (operation.count + segment - 1) / segment;
  const auto* const in = static_cast<const std::byte*>(operation.in);
  auto* const out = static_cast<std::byte*>(operation.out);
  const auto own = static_cast<size_t>(group_.index());
  if (!zero_copy) group_.staging(4 * buffer_);

  const auto length_of = [&](size_t t) { return std::min(segment, operation.count - t * segment); };
  const auto show = [&](size_t t) {
    std::byte* const staging = group_.staging_of(group_.index()) + (t % 2) * buffer_;
    const size_t length = length_of(t);
    if (by_block) {
      for (const auto& send : step.sends) {
        const auto block = static_cast<size_t>(send.blocks.begin);
        copy_bytes(staging + block * length * size, in + (block * operation.count + t * segment) * size,
                   length * size);
      }
    } else if (!step.sends.empty()) {
      copy_bytes(staging, in + t * segment * size, length * size);
    }
    group_.advance_phase();
  };
  // What peer i shows us of segment t.
  const auto shown = [&](int i, size_t t) -> const std::byte* {
    const size_t block = by_block ? own : 0;
    if (i == group_.index()) return in + (block * operation.count + t * segment) * size;
    if (zero_copy) {
      return group_.peer(i).arena->at(group_.header(i).offset) +
             (block * operation.count + t * segment) * size;
    }
    return group_.staging_of(i) + (t % 2) * buffer_ + block * length_of(t) * size;
  };
  const auto take = [&](size_t t) {
    if (collective == Collective::kBarrier) return;  // that all are here is all
    const size_t length = length_of(t);
    if (collective == Collective::kReduceScatter || collective == Collective::kReduce ||
        collective == Collective::kAllReduce) {
      if (step.receives.empty()) return;
      std::vector<const void*> sources;
      for (int i = 0; i < group_.size(); ++i) sources.push_back(shown(i, t));
      void* const result = out + t * segment * size;
      return kernels().reduce(reduction_of(operation, true, group_.size()), sources, {&result, 1}, length);
    }
    const auto destination = [&](size_t block) {
      return out + (collective == Collective::kBroadcast ? 0 : block * operation.count) * size +
             t * segment * size;
    };
    for (const auto& receive : step.receives) {
      const int i = group_.index_of(receive.peer);
      copy_bytes(destination(static_cast<size_t>(i)), shown(i, t), length * size);
    }
    if (collective != Collective::kBroadcast && destination(own) != shown(group_.index(), t)) {
      copy_bytes(destination(own), shown(group_.index(), t), length * size);
    }
  };

  if (zero_copy) {
    take(0);
    group_.advance_phase();
    return group_.wait_for_all(context, group_.phase());
  }
  // Phases as above, with "taken" for "reduced"; at the end all have taken all, and the buffers are free.
  const uint64_t start = group_.phase();
  const auto shown_phase = [&](size_t t) { return start + (t == 0 ? 1 : 2 * t); };
  const auto taken_phase = [&](size_t t) { return start + (t + 1 == segments ? 2 * segments : 2 * t + 3); };
  show(0);
  for (size_t t = 0; t < segments; ++t) {
    if (t + 1 < segments) {
      if (t > 0) group_.wait_for_all(context, taken_phase(t - 1));
      show(t + 1);
    }
    group_.wait_for_all(context, shown_phase(t));
    take(t);
    group_.advance_phase();
  }
  group_.wait_for_all(context, taken_phase(segments - 1));
}

void MemoryExecutor::begin(const OperationContext& context) {
  const Operation& operation = context.operation;
  const size_t offset = offset_in_arena(group_.arena(), operation.out, operation.bytes());
  MUSTER_CHECK(offset != 0 || operation.count == 0);
  group_.begin(context, offset, nullptr, 0);
}

void MemoryExecutor::run_stage(const OperationContext& context, const Plan& plan, const Stage& stage) {
  const Operation& operation = context.operation;
  const size_t size = size_of(operation.dtype);
  const BlockLayout layout(operation.count, plan.blocks);
  group_.advance_phase();  // what was done before this stage can be read
  for (const auto& step : stage.steps) {
    std::vector<const void*> sources;
    const auto source = [&](int i, const Blocks& blocks) -> const std::byte* {
      return group_.peer(i).arena->at(group_.header(i).offset) + layout.begin(blocks.begin) * size;
    };
    for (const auto& receive : step.receives) {
      if (receive.action == Action::kReduce) continue;
      const int i = group_.index_of(receive.peer);
      group_.wait_for_phase(context, i, group_.phase());
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

void MemoryExecutor::end(const OperationContext& context) {
  group_.advance_phase();
  group_.wait_for_all(context, group_.phase());
}

}  // namespace muster::detail
