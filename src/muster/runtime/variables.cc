#include "muster/runtime/variables.h"

#include <atomic>
#include <cmath>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/zeros_like.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/text.h"
#include "muster/graph/graph_node.h"
#include "muster/optim/gradients.h"
#include "muster/runtime/replica_coordinator.h"
#include "muster/runtime/shared_values.h"
#include "muster/runtime/stall_warning.h"
#include "muster/runtime/tensor_queue.h"

namespace muster::detail {

namespace {

// Elements that a thread updates at least: fewer are done sooner than a thread is woken.
constexpr int64_t kGrain = 32768;

// "sgd momentum=0.9": rates may differ from step to step.
std::string options_without_rate(const UpdateRule& rule) {
  std::string text;
  for (const auto& word : split(rule.to_string(), ' ')) {
    if (!word.starts_with("lr=")) text += (text.empty() ? "" : " ") + word;
  }
  return text;
}

// What is not known fits.
bool is_as(const at::Tensor& value, std::optional<at::ScalarType> dtype, const Shape& shape) {
  return (!dtype || value.scalar_type() == *dtype) && shape.accepts(value.sizes());
}

bool is_held_by_others(const at::Tensor& tensor) {
  return tensor.use_count() > 1 || tensor.storage().use_count() > 1;
}

UpdateRange range_of(const at::Tensor& value, const at::Tensor& gradient,
                     const std::vector<at::Tensor>& states, int64_t begin, int64_t end) {
  const auto size = static_cast<int64_t>(value.element_size());
  const auto at = [size, begin](const at::Tensor& tensor) {
    return static_cast<char*>(tensor.data_ptr()) + size * begin;
  };
  UpdateRange range{.dtype = value.scalar_type() == at::kDouble ? DType::kFloat64 : DType::kFloat32,
                    .parameter = at(value),
                    .gradient = at(gradient),
                    .count = static_cast<size_t>(end - begin)};
  for (size_t i = 0; i < states.size(); ++i) range.states[i] = at(states[i]);
  return range;
}

}  // namespace

bool is_finite(const at::Tensor& gradient) {
  if (gradient.scalar_type() != at::kFloat && gradient.scalar_type() != at::kDouble) return true;
  const at::Tensor dense = gradient.contiguous();
  const DType dtype = dense.scalar_type() == at::kDouble ? DType::kFloat64 : DType::kFloat32;
  std::atomic<bool> is_finite = true;
  at::parallel_for(0, dense.numel(), kGrain, [&](int64_t begin, int64_t end) {
    const char* first = static_cast<const char*>(dense.data_ptr()) + begin * dense.element_size();
    if (!all_finite(dtype, first, static_cast<size_t>(end - begin))) is_finite = false;
  });
  return is_finite;
}

void TaskVariable::check_value() const {
  if (!value_.defined())
    raise<InvalidArgument>("the variable '{}' has no value yet: run the graph's initializer() first", name_);
}

double rate_of(const at::Tensor& lr) {
  const auto rate = lr.item<double>();
  if (!std::isfinite(rate)) raise<InvalidArgument>("the learning rate is {}", rate);
  return rate;
}

at::Tensor TaskVariable::read() const {
  const MutexLock lock(mutex_);
  check_value();
  return value_;
}

bool TaskVariable::has_value() const {
  const MutexLock lock(mutex_);
  return value_.defined();
}

at::Tensor TaskVariable::add(const at::Tensor& value) {
  const MutexLock lock(mutex_);
  check_value();
  value_ = at::add(value_, value.detach());  // who has read the old one keeps it
  return value_;
}

void TaskVariable::declare(const GraphNode& node) {
  const OutputInfo& info = node.outputs.front();
  const MutexLock lock(mutex_);
  if (value_.defined() && !is_as(value_, info.dtype, info.shape))
    raise<InvalidArgument>(
        "{}: its variable is {} {} here, of another graph, and this graph says {} {}. Give it another name, "
        "or variables another place: a container of their own (Session::Options::container), or "
        "private_variables; or start the task again",
        node.describe(), c10::toString(value_.scalar_type()), Shape(value_.sizes()).to_string(),
        info.dtype ? c10::toString(*info.dtype) : "?", info.shape.to_string());
  if (info.dtype) dtype_ = info.dtype;
  if (info.shape.known()) shape_ = info.shape;
}

void TaskVariable::assign(at::Tensor value) {
  if (value.requires_grad()) value = value.detach();
  if (is_held_by_others(value) || SharedValues::is_borrowed(value) || !value.is_contiguous())
    value = value.clone(at::MemoryFormat::Contiguous);
  const MutexLock lock(mutex_);
  if (!is_as(value, dtype_, shape_))
    raise<InvalidArgument>("the variable '{}' is given a value of type {} and sizes {}; expected {} {}",
                           name_, c10::toString(value.scalar_type()), Shape(value.sizes()).to_string(),
                           dtype_ ? c10::toString(*dtype_) : "?", shape_.to_string());
  value_ = std::move(value);
  states_.clear();
  step_ = 0;
}

// What a rule remembers of a variable means nothing to another one, or to the same with other options.
void TaskVariable::begin_rule(const UpdateRule& rule) {
  if (&rule == last_rule_) return;
  last_rule_ = &rule;
  std::string options = options_without_rate(rule);
  if (options == rule_) return;
  if (!rule_.empty() && step_ > 0) {
    if (!std::exchange(has_warned_, true))
      log_warning(
          "the variable '{}' is updated by '{}', and was by '{}' before: what that remembered of it is "
          "forgotten. Clients that train it together need the same optimizer",
          name_, options, rule_);
    states_.clear();
    step_ = 0;
  }
  rule_ = std::move(options);
}

void TaskVariable::update(const UpdateRule& rule, const at::Tensor& gradient, std::optional<double> lr) {
  const MutexLock lock(mutex_);
  check_value();
  if (gradient.sizes() != value_.sizes() || gradient.scalar_type() != value_.scalar_type())
    raise<InvalidArgument>("the gradient of the variable '{}' has another type or other sizes than it",
                           name_);
  if (value_.scalar_type() != at::kFloat && value_.scalar_type() != at::kDouble)
    raise<InvalidArgument>("the variable '{}' is neither of float32 nor of float64, which update rules take",
                           name_);
  if (is_held_by_others(value_)) value_ = value_.clone();
  begin_rule(rule);
  if (states_.size() != rule.states()) {
    states_.clear();
    for (size_t i = 0; i < rule.states(); ++i) states_.push_back(at::zeros_like(value_));
  }
  const at::Tensor dense = gradient.contiguous();
  if (!is_finite(dense))
    raise<InvalidArgument>("the gradient of the variable '{}' is not finite: the variable is left as it was",
                           name_);
  const UpdateNow now{.step = ++step_, .lr = lr.value_or(rule.lr()), .adapt = value_.dim() > 1};
  Norms norms;
  if (rule.measures()) norms = rule.measure(range_of(value_, dense, states_, 0, value_.numel()), now);
  at::parallel_for(0, value_.numel(), kGrain, [&](int64_t begin, int64_t end) {
    rule.apply(range_of(value_, dense, states_, begin, end), now, norms);
  });
  value_.unsafeGetTensorImpl()->bump_version();
}

Container::Container()
    : stall_warning_(stall_warning_of_job()), replicas_(std::make_unique<Replicas>(stall_warning_)) {}
Container::~Container() = default;

TaskVariable& Container::get(const std::string& name) {
  const MutexLock lock(mutex_);
  auto& variable = variables_[name];
  if (!variable) variable = std::make_unique<TaskVariable>(name);
  return *variable;
}

TaskVariable& Container::get(const GraphNode& variable) {
  TaskVariable& found = get(variable.name);
  found.declare(variable);
  return found;
}

TensorQueue& Container::queue(const std::string& name, int64_t capacity, const std::vector<int64_t>& types) {
  const MutexLock lock(mutex_);
  auto& queue = queues_[name];
  if (!queue) queue = std::make_unique<TensorQueue>(name, capacity, types, stall_warning_);
  queue->check_options(capacity, types);
  return *queue;
}

}  // namespace muster::detail
