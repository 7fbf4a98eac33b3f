#pragma once

// Executes the stages of a plan that go through memory: every rank of a host reads what the others have, and
// reduces or copies it. A buffer is cut into the plan's blocks; where it has to be copied, it goes by
// segments, each of which is cut into blocks itself. Three ways, the same on all ranks of an operation:
//
//   inline        data of a few KiB comes in the header slot with which a rank begins
//   zero-copy     the data is in arenas: it is read where it is
//   staged        the data is in ordinary memory: segments of it go through a staging buffer, each while the
//                 one before it is being reduced
//
// One thread uses it at a time: the one that runs the rank's collective. It refers to the HostGroup, which
// outlives it. Calls block until the other ranks have done theirs; they throw what the GroupError says.

#include <cstddef>

#include "muster/collective/kernels.h"
#include "muster/collective/native/block_layout.h"
#include "muster/collective/native/host_group.h"
#include "muster/collective/plan/plan.h"

namespace muster::detail {

class MemoryExecutor {
 public:
  /// `segment`: how much is staged at once, in bytes.
  MemoryExecutor(HostGroup& group, size_t segment);

  /// A plan of one stage that is all memory: everything from the header to the end.
  void run(const OperationContext& context, const Plan& plan);

  /// A few KiB of an all-reduce: inline where a rank's data is in ordinary memory, by the direct plan where
  /// all have it in arenas.
  void run_small(const OperationContext& context, const Plan& exchange_plan, const Plan& direct_plan);

  /// The algorithm "exchange", inline: every rank reduces what is in the header slots of all.
  void run_exchange(const OperationContext& context, const Step& step);

  /// Plans of several stages, in place on an arena's memory. First begin, then each stage, then end.
  void begin(const OperationContext& context);
  void run_stage(const OperationContext& context, const Plan& plan, const Stage& stage);
  void end(const OperationContext& context);

 private:
  void all_reduce_zero_copy(const OperationContext& context, const Step& step, int blocks);
  void all_reduce_staged(const OperationContext& context, const Plan& plan);
  void one_step(const OperationContext& context, const Step& step, bool zero_copy);
  void reduce_from_headers(const OperationContext& context, const Step& step);
  bool every_sender_in_arena(const Operation& operation) const;

  HostGroup& group_;
  const size_t segment_;
  const size_t
      buffer_;  // of the four in the staging buffer: a segment, and room for its blocks to be rounded up
};

}  // namespace muster::detail
