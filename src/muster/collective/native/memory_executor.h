#pragma once

// Executes the stages of a plan that go through memory: every rank of a host reads what the others have, and
// reduces or copies it. Three ways, the same on all ranks of an operation:
//
//   on the card   data of a few KiB comes with the rank's arrival
//   zero-copy     the data is in arenas: it is read where it is
//   staged        the data is in ordinary memory: pieces of it go through a staging buffer, while the pieces
//                 before them are being reduced
//
// One thread uses it at a time: the one that runs the rank's collective. It refers to the HostGroup, which
// outlives it. Calls block until the other ranks have done their part; they throw what the group's Failure
// says.

#include <cstddef>

#include "muster/collective/kernels.h"
#include "muster/collective/native/host_group.h"
#include "muster/collective/native/layout.h"
#include "muster/collective/plan/plan.h"

namespace muster {

class MemoryExecutor {
 public:
  /// `segment` is the piece that is staged at once, in bytes.
  MemoryExecutor(HostGroup& group, size_t segment);

  /// A plan of one stage that is all memory: everything from the arrival to the end.
  void run(const Context& context, const Plan& plan);

  /// A few KiB of an all-reduce: on the cards where a rank's data is in ordinary memory, by the direct plan
  /// where all have it in arenas.
  void run_small(const Context& context, const Plan& exchange_plan, const Plan& direct_plan);

  /// All of it on the cards.
  void exchange(const Context& context, const Step& step);

  /// Plans of several stages, in place on an arena's memory. First arrive, then each stage, then leave.
  void arrive(const Context& context);
  void run_stage(const Context& context, const Plan& plan, const Stage& stage);
  void leave(const Context& context);

 private:
  void all_reduce_zero_copy(const Context& context, const Step& step, int blocks);
  void all_reduce_staged(const Context& context, const Plan& plan);
  void one_step(const Context& context, const Step& step, bool zero_copy);
  void reduce_from_cards(const Context& context, const Step& step);
  bool every_sender_in_arena(const Operation& operation) const;

  HostGroup& group_;
  const size_t segment_;
  const size_t
      buffer_;  // of the four in the staging buffer: a segment, and room for its blocks to be rounded up
};

}  // namespace muster
