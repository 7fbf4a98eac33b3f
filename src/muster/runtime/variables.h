#pragma once

// The variables that sessions keep on a task: tensors by name, with what an update rule remembers of each.
//
// A value that was read stays as it was: who changes a variable whose tensor somebody else still holds (a run
// that is under way, a result that a user kept) makes a new one. So a run may read while another updates, and
// an update in place, which is the usual case, costs no copy.
//
// Thread-safe. Changes of one variable wait for each other.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/base/mutex.h"
#include "muster/graph.h"
#include "muster/optim/update_rule.h"

namespace muster::detail {

struct GraphNode;

/// The learning rate of a step. Throws InvalidArgument where it is no number, or infinite.
double rate_of(const at::Tensor& lr);

/// Whether no element of a gradient of float32 or float64 is infinite or not a number; of others nothing is
/// said.
bool is_finite(const at::Tensor& gradient);

class TaskVariable {
 public:
  explicit TaskVariable(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }

  /// The value. Throws InvalidArgument when there is none yet, with what to do.
  at::Tensor read() const;
  bool has_value() const;

  /// A graph has it as this node: values have the type and the shape that the node says, as far as it says
  /// any. Throws InvalidArgument where there is a value of another type or shape.
  void declare(const GraphNode& node);

  /// Takes the tensor over where nobody else has it, and a copy otherwise. What a rule remembered is forgotten.
  /// Throws InvalidArgument for a value that is not as declared.
  void assign(at::Tensor value);

  /// Adds to the value, which there has to be, and gives the sum. What a rule remembers stays.
  at::Tensor add(const at::Tensor& value);

  /// One step by the rule; another one than before begins anew, with a warning. The gradient is dense, and of
  /// the variable's type and sizes. Throws InvalidArgument where it is not finite: then the value is as it was.
  void update(const UpdateRule& rule, const at::Tensor& gradient, std::optional<double> lr);

 private:
  void check_value() const MUSTER_REQUIRES(mutex_);
  void begin_rule(const UpdateRule& rule) MUSTER_REQUIRES(mutex_);

  const std::string name_;
  mutable Mutex mutex_;
  at::Tensor value_ MUSTER_GUARDED_BY(mutex_);
  std::optional<at::ScalarType> dtype_ MUSTER_GUARDED_BY(mutex_);  // as declared
  Shape shape_ MUSTER_GUARDED_BY(mutex_);
  std::vector<at::Tensor> states_ MUSTER_GUARDED_BY(mutex_);
  int64_t step_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::string rule_ MUSTER_GUARDED_BY(mutex_);  // whose states they are, with its options
  const UpdateRule* last_rule_ MUSTER_GUARDED_BY(mutex_) = nullptr;  // only compared: nobody keeps it
  bool has_warned_ MUSTER_GUARDED_BY(mutex_) = false;
};

class Replicas;
class TensorQueue;

/// Variables that sessions share by name.
class Container {
 public:
  /// Throws InvalidArgument as stall_warning_of_job() does.
  Container();
  ~Container();

  /// The variable of this name, which is made, without a value, where there is none. It lives as long as the
  /// container.
  TaskVariable& get(const std::string& name);

  /// The variable that a node of a graph stands for, as the node declares it. Throws InvalidArgument where it
  /// has a value of another type or shape.
  TaskVariable& get(const GraphNode& variable);

  /// The queue of this name, which is made where there is none. It lives as long as the container. Throws
  /// InvalidArgument where it is there with another capacity or other types.
  TensorQueue& queue(const std::string& name, int64_t capacity, const std::vector<int64_t>& types);

  /// What replicas that train the variables together have here (replica_coordinator.h).
  Replicas& replicas() { return *replicas_; }

 private:
  Mutex mutex_;
  std::unordered_map<std::string, std::unique_ptr<TaskVariable>> variables_ MUSTER_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::unique_ptr<TensorQueue>> queues_ MUSTER_GUARDED_BY(mutex_);
  const std::chrono::milliseconds stall_warning_;
  const std::unique_ptr<Replicas> replicas_;  // uses the variables
};

}  // namespace muster::detail
