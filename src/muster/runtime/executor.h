#pragma once

// Runs a Program in the thread that calls: its instructions one after the other, or, where it takes values
// from other tasks, its blocks as these come.
//
//   Executor executor(program);
//   std::vector<at::Tensor> results = executor.run({images, labels});
//
// Thread-safe: runs at the same time have slots of their own. Throws InvalidArgument for feeds of another
// type or shape, and for an operator that fails, with its node.

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/base/mutex.h"
#include "muster/runtime/program.h"
#include "muster/tensor/tensor_memory.h"

namespace muster::detail {

/// The other tasks, as a step sees them.
class StepExchange {
 public:
  virtual ~StepExchange() = default;

  /// The number of the step, which no other step of the cluster has.
  virtual uint64_t step() const = 0;

  /// Gives a value to another task. May throw.
  virtual void send(const Sent& sent, const c10::IValue& value) = 0;

  /// Throws when the step was aborted. Called before each instruction.
  virtual void check() = 0;

  /// Lets go of values that were given to others and that nobody reads any more.
  virtual void take_back() = 0;

  /// What has come since, as (key, value); nothing may have. Blocks until something has if so told. Throws
  /// when the step was aborted.
  virtual std::vector<std::pair<uint32_t, c10::IValue>> receive(bool may_wait) = 0;
};

/// When a task ran an instruction, or waited for others, in nanoseconds of the system's clock.
struct NodeTime {
  static constexpr uint32_t kWaiting = ~uint32_t{0};

  uint32_t node = kWaiting;  ///< which label of the program's
  int64_t start_ns = 0;
  int64_t duration_ns = 0;
};

class Executor {
 public:
  /// Tensors come from `memory`, which outlives this; of a body, which needs none, from that of its caller.
  explicit Executor(std::shared_ptr<const Program> program, TensorMemory* memory = nullptr);

  /// The feeds in the order of the signature; the results in the order of its fetches. Nobody but the caller
  /// has the results. `times` gets what was done when.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& feeds, StepExchange* others = nullptr,
                              std::vector<NodeTime>* times = nullptr);

  /// The same within a run, of a body: autograd records it if it records the caller.
  std::vector<c10::IValue> call(const std::vector<c10::IValue>& inputs, StepExchange* others = nullptr);

  const Program& program() const { return *program_; }

 private:
  struct Frame {
    std::vector<c10::IValue> slots;
    torch::jit::Stack stack;
    std::vector<NodeTime>* times = nullptr;  // of a run that is noted
  };

  std::unique_ptr<Frame> take_frame();
  void give_back(std::unique_ptr<Frame> frame);
  void feed(Frame& frame, const std::vector<at::Tensor>& feeds) const;
  void execute(Frame& frame, StepExchange* others) const;
  void execute_blocks(Frame& frame, StepExchange& others) const;
  void execute(const Block& block, Frame& frame, StepExchange* others) const;
  void call(const Instruction& instruction, Frame& frame, StepExchange* others) const;
  void pass(const Instruction& instruction, Frame& frame) const;
  void sum(const Instruction& instruction, Frame& frame) const;
  c10::IValue value(const Source& source, Frame& frame) const;
  const c10::IValue& fetched_value(const Source& source, const Frame& frame) const;
  at::Tensor fetched(const Source& source, const Frame& frame) const;

  const std::shared_ptr<const Program> program_;  // shared: several sessions may run one
  TensorMemory* const memory_;
  std::unordered_map<uint32_t, const Received*> received_;  // by key
  Mutex mutex_;
  std::vector<std::unique_ptr<Frame>> frames_ MUSTER_GUARDED_BY(mutex_);  // that are not in use
};

}  // namespace muster::detail
