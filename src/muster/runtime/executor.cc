#include "muster/runtime/executor.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <queue>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "muster/base/error.h"

namespace muster::detail {

namespace {

// Off the tape nothing is recorded, and autograd's part of the dispatcher is left out; on it, it records.
// A body is recorded as its caller is.
class TapeMode {
 public:
  explicit TapeMode(bool is_body) : is_body_(is_body), gradients_(is_body && at::GradMode::is_enabled()) {
    if (!is_body) below_.emplace();
  }

  void set(bool on_tape) {
    if (is_body_ || on_tape == !below_.has_value()) return;
    if (on_tape) {
      below_.reset();
      at::GradMode::set_enabled(true);
    } else {
      at::GradMode::set_enabled(false);
      below_.emplace();
    }
  }

 private:
  const bool is_body_;
  at::AutoGradMode gradients_;  // what it was is restored at the end
  std::optional<at::AutoDispatchBelowADInplaceOrView> below_;
};

// Notes, where a run is noted, how long this lives.
class TimedSpan {
 public:
  TimedSpan(std::vector<NodeTime>* times, uint32_t node)
      : times_(times), node_(node), start_ns_(times == nullptr ? 0 : now_ns()) {}
  ~TimedSpan() {
    if (times_ != nullptr)
      times_->push_back({.node = node_, .start_ns = start_ns_, .duration_ns = now_ns() - start_ns_});
  }
  TimedSpan(const TimedSpan&) = delete;
  TimedSpan& operator=(const TimedSpan&) = delete;

 private:
  static int64_t now_ns() {
    return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  }

  std::vector<NodeTime>* const times_;
  const uint32_t node_;
  const int64_t start_ns_;
};

}  // namespace

Executor::Executor(std::shared_ptr<const Program> program, TensorMemory* memory)
    : program_(std::move(program)), memory_(memory) {
  for (const auto& received : program_->received) {
    if (!received_.emplace(received.key, &received).second)
      raise<InvalidArgument>("two nodes take the value {} from another task", received.key);
  }
}

std::vector<at::Tensor> Executor::run(const std::vector<at::Tensor>& feeds, StepExchange* others,
                                      std::vector<NodeTime>* times) {
  const c10::InferenceMode no_inference(false);  // in which there are no derivatives
  const TensorMemory::Scope scope(*memory_);
  auto frame = take_frame();
  frame->times = times;
  feed(*frame, feeds);
  execute(*frame, others);
  std::vector<at::Tensor> results;
  results.reserve(program_->fetches.size());
  for (const auto& fetch : program_->fetches) results.push_back(fetched(fetch, *frame));
  give_back(std::move(frame));
  return results;
}

std::vector<c10::IValue> Executor::call(const std::vector<c10::IValue>& inputs, StepExchange* others) {
  MUSTER_CHECK(inputs.size() == program_->feeds.size(), "a body takes {} values, and is given {}",
               program_->feeds.size(), inputs.size());
  auto frame = take_frame();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (program_->feeds[i].is_used) frame->slots[program_->feeds[i].slot] = inputs[i];
  }
  execute(*frame, others);
  std::vector<c10::IValue> results;
  for (const auto& fetch : program_->fetches) results.push_back(fetched_value(fetch, *frame));
  give_back(std::move(frame));
  return results;
}

std::unique_ptr<Executor::Frame> Executor::take_frame() {
  {
    const MutexLock lock(mutex_);
    if (!frames_.empty()) {
      auto frame = std::move(frames_.back());
      frames_.pop_back();
      return frame;
    }
  }
  auto frame = std::make_unique<Frame>();
  frame->slots.resize(program_->slots);
  return frame;
}

// A frame of a run that failed is not given back, but dropped with what is in it.
void Executor::give_back(std::unique_ptr<Frame> frame) {
  frame->times = nullptr;
  for (const auto& feed : program_->feeds) frame->slots[feed.slot] = {};
  for (const auto& fetch : program_->fetches) {
    if (fetch.kind == Source::Kind::kSlot) frame->slots[fetch.index] = {};
  }
  const MutexLock lock(mutex_);
  frames_.push_back(std::move(frame));
}

void Executor::feed(Frame& frame, const std::vector<at::Tensor>& feeds) const {
  Program::check(program_->feeds, feeds);
  for (size_t i = 0; i < feeds.size(); ++i) {
    const auto& expected = program_->feeds[i];
    if (expected.is_used) frame.slots[expected.slot] = feeds[i];
  }
}

c10::IValue Executor::value(const Source& source, Frame& frame) const {
  switch (source.kind) {
    case Source::Kind::kConstant:
      return program_->constants[source.index];
    case Source::Kind::kSlot:
      return frame.slots[source.index];
    case Source::Kind::kLastUse:
      return std::move(frame.slots[source.index]);
    case Source::Kind::kList:
      break;
  }
  const SourceList& list = program_->lists[source.index];
  c10::impl::GenericList made(list.element);
  made.reserve(list.sources.size());
  for (const auto& each : list.sources) made.push_back(value(each, frame));
  return made;
}

void Executor::execute(Frame& frame, StepExchange* others) const {
  MUSTER_CHECK(others != nullptr || (program_->received.empty() && program_->sent.empty()),
               "a part of a graph runs without the others");
  if (program_->blocks.size() == 1) {
    execute(program_->blocks.front(), frame, others);
  } else {
    execute_blocks(frame, *others);
  }
}

// The most urgent of the blocks that have all they need, again and again.
void Executor::execute_blocks(Frame& frame, StepExchange& others) const {
  const auto& blocks = program_->blocks;
  std::vector<uint32_t> missing(blocks.size());
  std::vector<uint32_t> uses = program_->shared_uses;
  using Entry = std::pair<BlockUrgency, uint32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    missing[i] = blocks[i].missing;
    if (missing[i] == 0) ready.emplace(blocks[i].urgency, i);
  }
  const auto give = [&](uint32_t block) {
    if (--missing[block] == 0) ready.emplace(blocks[block].urgency, block);
  };
  size_t done = 0;
  size_t left = program_->received.size();
  while (done < blocks.size()) {
    if (left > 0) {
      std::vector<std::pair<uint32_t, c10::IValue>> come;
      {
        const TimedSpan waiting(ready.empty() ? frame.times : nullptr, NodeTime::kWaiting);
        come = others.receive(/*may_wait=*/ready.empty());
      }
      for (auto& [key, value] : come) {
        const auto found = received_.find(key);
        if (found == received_.end()) raise<InvalidArgument>("the value {} is not of this step", key);
        frame.slots[found->second->slot] = std::move(value);
        --left;
        for (const uint32_t block : found->second->blocks) give(block);
      }
    }
    if (ready.empty()) {
      MUSTER_CHECK(left > 0, "blocks wait for each other");
      continue;
    }
    const uint32_t next = ready.top().second;
    ready.pop();
    execute(blocks[next], frame, &others);
    ++done;
    for (const uint32_t slot : blocks[next].uses) {
      if (--uses[slot] == 0) frame.slots[slot] = {};
    }
    for (const uint32_t follower : blocks[next].followers) give(follower);
  }
}

void Executor::execute(const Block& block, Frame& frame, StepExchange* others) const {
  TapeMode tape(program_->is_body);
  const Instruction* instruction = nullptr;
  try {
    for (uint32_t number = 0; number < block.count; ++number) {
      const Instruction& each = program_->instructions[block.first + number];
      instruction = &each;
      if (others != nullptr) others->check();
      const TimedSpan span(frame.times, each.node);
      tape.set(each.on_tape);
      const Source* sources = program_->sources.data() + each.first_source;
      switch (each.kind) {
        case InstructionKind::kCall:
          call(each, frame, others);
          break;
        case InstructionKind::kRead:
          frame.slots[each.result] = program_->variables[each.detail]->read();
          break;
        case InstructionKind::kAssign: {
          TaskVariable& variable = *program_->variables[each.detail];
          variable.assign(std::move(value(sources[0], frame)).toTensor());
          frame.slots[each.result] = variable.read();
          break;
        }
        case InstructionKind::kAdd:
          frame.slots[each.result] =
              program_->variables[each.detail]->add(std::move(value(sources[0], frame)).toTensor());
          break;
        case InstructionKind::kHasValue:
          frame.slots[each.result] =
              at::scalar_tensor(program_->variables[each.detail]->has_value(), at::TensorOptions(at::kBool));
          break;
        case InstructionKind::kUpdate: {
          const auto& update = program_->updates[each.detail];
          const auto lr = value(sources[1], frame);
          const auto gradient = value(sources[0], frame);
          if (!gradient.isTensor() || !gradient.toTensor().defined()) break;
          if (others != nullptr) others->take_back();
          program_->variables[update.variable]->update(
              *update.rule, gradient.toTensor(),
              lr.isNone() ? std::nullopt : std::optional(rate_of(lr.toTensor())));
          break;
        }
        case InstructionKind::kLeaf: {
          at::Tensor leaf = value(sources[0], frame).toTensor().detach();
          // A comparison that a branch depends on, say, has no derivative.
          if (each.detail != 0 && (leaf.is_floating_point() || leaf.is_complex())) leaf.requires_grad_();
          frame.slots[each.result] = std::move(leaf);
          break;
        }
        case InstructionKind::kGradient:
          pass(each, frame);
          break;
        case InstructionKind::kSum:
          sum(each, frame);
          break;
        case InstructionKind::kSend:
          others->send(program_->sent[each.detail], value(sources[0], frame));
          break;
        case InstructionKind::kFunction: {
          if (others != nullptr) others->take_back();
          call(each, frame, others);
          break;
        }
      }
      const uint32_t* released = program_->released.data() + each.first_released;
      for (uint32_t i = 0; i < each.released; ++i) frame.slots[released[i]] = {};
    }
  } catch (const c10::Error& error) {
    raise<InvalidArgument>("{}: {}", program_->nodes[instruction->node].to_string(),
                           error.what_without_backtrace());
  } catch (const InvalidArgument& error) {
    raise<InvalidArgument>("{}: {}", program_->nodes[instruction->node].to_string(), error.what());
  }
}

void Executor::call(const Instruction& instruction, Frame& frame, StepExchange* others) const {
  auto& stack = frame.stack;
  stack.clear();
  const Source* sources = program_->sources.data() + instruction.first_source;
  for (uint32_t i = 0; i < instruction.sources; ++i) {
    const Source& source = sources[i];
    switch (source.kind) {
      case Source::Kind::kConstant:
        stack.push_back(program_->constants[source.index]);
        break;
      case Source::Kind::kSlot:
        stack.push_back(frame.slots[source.index]);
        break;
      case Source::Kind::kLastUse:
        stack.push_back(std::move(frame.slots[source.index]));
        break;
      case Source::Kind::kList:
        stack.push_back(value(source, frame));
        break;
    }
  }
  if (instruction.kind == InstructionKind::kFunction) {
    program_->functions[instruction.detail](stack, others);
  } else {
    program_->operators[instruction.detail]->call(stack);
  }
  if (instruction.gives_list) {
    auto tensors = stack.front().toTensorVector();
    if (tensors.size() != instruction.results)
      raise<InvalidArgument>("it gave {} tensors, where {} were expected", tensors.size(),
                             instruction.results);
    for (uint32_t i = 0; i < instruction.results; ++i)
      frame.slots[instruction.result + i] = std::move(tensors[i]);
    return;
  }
  for (uint32_t i = 0; i < instruction.results; ++i)
    frame.slots[instruction.result + i] = std::move(stack[i]);
}

// What does not depend on a root has no gradient: an undefined tensor, or zeros for those who can't tell.
void Executor::pass(const Instruction& instruction, Frame& frame) const {
  const GradientPass& pass = program_->gradients[instruction.detail];
  torch::autograd::variable_list roots;
  torch::autograd::variable_list gradients;
  torch::autograd::variable_list wanted;
  std::vector<uint32_t> results;
  for (size_t i = 0; i < pass.roots.size(); ++i) {
    const at::Tensor& root = frame.slots[pass.roots[i]].toTensor();
    const c10::IValue gradient = value(pass.gradients[i], frame);
    if (!root.requires_grad() || !gradient.isTensor() || !gradient.toTensor().defined()) continue;
    roots.push_back(root);
    gradients.push_back(gradient.toTensor());
  }
  for (size_t i = 0; i < pass.wanted.size(); ++i) {
    const at::Tensor& tensor = frame.slots[pass.wanted[i]].toTensor();
    frame.slots[instruction.result + i] = at::Tensor();
    if (!tensor.requires_grad()) continue;
    wanted.push_back(tensor);
    results.push_back(instruction.result + static_cast<uint32_t>(i));
  }
  if (!roots.empty() && !wanted.empty()) {
    auto found = torch::autograd::grad(roots, wanted, gradients, /*retain_graph=*/!pass.is_last,
                                       /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t i = 0; i < found.size(); ++i) frame.slots[results[i]] = std::move(found[i]);
  }
  for (size_t i = 0; i < pass.wanted.size(); ++i) {
    auto& result = frame.slots[instruction.result + i];
    if (pass.must_be_defined[i] && !result.toTensor().defined())
      result = at::zeros_like(frame.slots[pass.wanted[i]].toTensor());
  }
}

void Executor::sum(const Instruction& instruction, Frame& frame) const {
  at::Tensor total;
  for (uint32_t i = 0; i < instruction.sources; ++i) {
    const c10::IValue part = value(program_->sources[instruction.first_source + i], frame);
    if (!part.isTensor() || !part.toTensor().defined()) continue;
    total = total.defined() ? at::add(total, part.toTensor()) : part.toTensor();
  }
  frame.slots[instruction.result] = std::move(total);
}

const c10::IValue& Executor::fetched_value(const Source& source, const Frame& frame) const {
  return source.kind == Source::Kind::kConstant ? program_->constants[source.index]
                                                : frame.slots[source.index];
}

// A result must not change afterwards, nor change anything: what others hold is copied.
at::Tensor Executor::fetched(const Source& source, const Frame& frame) const {
  const c10::IValue& found = fetched_value(source, frame);
  if (!found.isTensor()) {
    if (found.isInt()) return at::scalar_tensor(found.toInt(), at::TensorOptions(at::kLong));
    if (found.isDouble()) return at::scalar_tensor(found.toDouble(), at::TensorOptions(at::kDouble));
    if (found.isBool()) return at::scalar_tensor(found.toBool(), at::TensorOptions(at::kBool));
    raise<InvalidArgument>("a fetch is a {}, and no tensor", found.tagKind());
  }
  const at::Tensor tensor = found.toTensor();
  const bool is_held_by_others = source.kind == Source::Kind::kConstant || tensor.storage().use_count() > 1 ||
                                 tensor.use_count() > 2;  // the slot, and this one
  if (is_held_by_others) return tensor.detach().clone();
  return tensor.requires_grad() ? tensor.detach() : tensor;
}

}  // namespace muster::detail
