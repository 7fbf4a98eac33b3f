#pragma once

// Runs a Program: its instructions one after the other, in the thread that calls.
//
//   Executor executor(program);
//   std::vector<at::Tensor> results = executor.run({images, labels});
//
// Thread-safe: runs at the same time have slots of their own. Throws InvalidArgument for feeds of another
// type or shape, and for an operator that fails, with its node.

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/base/mutex.h"
#include "muster/runtime/program.h"

namespace muster::detail {

class Executor {
 public:
  explicit Executor(std::shared_ptr<const Program> program) : program_(std::move(program)) {}

  /// The feeds in the order of the signature; the results in the order of its fetches. Nobody but the caller
  /// has the results.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& feeds);

 private:
  struct Frame {
    std::vector<c10::IValue> slots;
    torch::jit::Stack stack;
  };

  std::unique_ptr<Frame> take_frame();
  void give_back(std::unique_ptr<Frame> frame);
  void feed(Frame& frame, const std::vector<at::Tensor>& feeds) const;
  void execute(Frame& frame) const;
  void call(const Instruction& instruction, Frame& frame) const;
  void pass(const Instruction& instruction, Frame& frame) const;
  void sum(const Instruction& instruction, Frame& frame) const;
  c10::IValue value(const Source& source, Frame& frame) const;
  at::Tensor fetched(const Source& source, const Frame& frame) const;

  const std::shared_ptr<const Program> program_;  // shared: several sessions may run one
  Mutex mutex_;
  std::vector<std::unique_ptr<Frame>> frames_ MUSTER_GUARDED_BY(mutex_);  // that are not in use
};

}  // namespace muster::detail
