#pragma once

// A torch module as the strategies see it: its parameters in flat memory, and its gradients as backward
// finishes them.
//
//   FlatModel model(net);
//   model.watch([&](size_t parameter) { ... });    // called in backward, when a gradient is there
//   loss.backward();
//   model.order();                                 // in which backward finished them
//   model.move_to(layout, memory, /*fill=*/true);  // the tensors of the module are views from here on
//
// A parameter that several modules share counts once, under its first name; one that requires no gradient is
// not trained. Not thread-safe.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "muster/optim/flat_layout.h"

namespace muster::detail {

class FlatModel {
 public:
  /// Throws InvalidArgument for parameters that can't be trained here: on another device, of a type that is
  /// no float, or of another FlatModel, as long as that lives; and for tensors into which no values can be
  /// copied.
  explicit FlatModel(torch::nn::Module& module);
  ~FlatModel();
  FlatModel(const FlatModel&) = delete;
  FlatModel& operator=(const FlatModel&) = delete;

  /// Whether some FlatModel has the parameter whose gradients this node accumulates.
  static bool is_trained(const torch::autograd::Node& accumulator);

  /// Throws InvalidArgument, with its name, for a parameter that a FlatModel has.
  static void refuse_if_trained(const std::string& name, const torch::Tensor& parameter);

  /// The trained parameters, in the order of the module until reorder(), then in that one.
  size_t size() const { return parameters_.size(); }
  const ParameterInfo& info(size_t parameter) const { return parameters_[parameter].info; }
  std::vector<ParameterInfo> infos() const;
  const torch::Tensor& tensor(size_t parameter) const { return parameters_[parameter].tensor; }

  /// One line for each parameter and buffer, trained or not: equal for equal models.
  std::string signature() const;

  /// All tensors that start from the chief's: parameters, trained or not, and buffers.
  std::vector<torch::Tensor> tensors() const;
  std::vector<torch::Tensor> buffers() const;

  /// Which buffers have other sizes than when this was made: "seen [5] instead of [1]"; "": none.
  std::string resized_buffers() const;

  /// The parameters that are not trained, and their names.
  std::vector<std::pair<std::string, torch::Tensor>> frozen() const;

  /// Whether the module has other parameters to train than those that were found when this was made.
  bool has_changed() const;

  /// The same in words, of the first one: "the parameter fc.bias is not trained any more".
  std::string what_changed() const;

  /// The names of two trained parameters that lie in the same memory, other than as the same tensor; if any do.
  std::optional<std::pair<std::string, std::string>> sharing_memory() const;

  /// The first parameter whose memory somebody beside the module has too, as a view of it, which would not be
  /// one any more after move_to(). nullptr: none.
  const ParameterInfo* aliased() const;

  /// The values of a parameter as move_to() lays them out: the parameter itself where it lies so.
  torch::Tensor laid_out(size_t parameter) const;

  /// Whether nobody else refers to any of the module's tensors any more: then it is gone.
  bool is_abandoned() const;

  /// Called with a parameter, as it is numbered now, when its gradient is there; empty: nobody is.
  void watch(std::function<void(size_t parameter)> on_gradient) { on_gradient_ = std::move(on_gradient); }

  /// The order in which the gradients of the last backward pass came, as indices; those without one last.
  std::vector<size_t> order() const;
  void forget_order() { order_.clear(); }
  void reorder(const std::vector<size_t>& order);

  /// Makes the parameters views of `memory`. Copies their values there first where `fill`.
  void move_to(const FlatLayout& layout, const std::shared_ptr<std::byte>& memory, bool fill);

  /// Remembers that the values of the parameters are as they should be; and, where Muster has just put them
  /// there, in which memory.
  void note_values();
  void note_values_and_memory();

  /// The first parameter, trained or not, that has been given other memory since it was noted, as by
  /// torch::load, Module::to and set_data; and the first trained one that was changed where it lies, as by an
  /// operator whose name ends with an underscore. nullptr: none.
  const ParameterInfo* moved() const;
  const ParameterInfo* written() const;

  /// What is written through Tensor::data(), as torch's optimizers do, autograd does not count. From now on
  /// note_values() keeps one value of each parameter, another each time, and written_unseen() gives the first
  /// parameter in which that one has changed. To be asked where nobody else updates the parameters.
  void sample_values() { is_sampled_ = true; }
  const ParameterInfo* written_unseen() const;

  /// Sets what groups have otherwise, by parameter.
  void set_group(size_t parameter, const GroupRates& group) { parameters_[parameter].info.group = group; }

  /// Makes the gradient of a parameter what lies in memory as the parameter's own values would.
  void set_gradient(size_t parameter, std::byte* values);

  /// Gives each parameter memory of its own again.
  void move_back();

  void clear_gradients();

  /// Takes the gradients off the parameters, out of the program's reach, and adds them to those that came
  /// since.
  void set_gradients_aside();
  void put_gradients_back();
  void scale_gradients(double factor);

  /// What other models' backward passes leave here is none of this model's.
  void drop_gradients();

  /// The parameters that have a gradient were updated: from here on autograd refuses, as after an optimizer
  /// of torch's, to go back through a graph that was made before and needs their values.
  void note_update();

  /// The gradient as the strategies want it: dense, with the parameter's type and strides. nullptr when there
  /// is none. Valid until clear_gradients().
  const void* gradient(size_t parameter);

  /// Note who refers to the parameters after a step, when no graph should, and before one, which counts where
  /// there are fewer: a graph may be there already. Then `held` says whether anybody beside these does, as a
  /// part of the graph that backward has not reached.
  void note_references_after();
  void note_references_before();
  bool held(size_t parameter) const;

 private:
  struct Parameter {
    ParameterInfo info;
    torch::Tensor tensor;
    std::shared_ptr<torch::autograd::Node> accumulator;
    uintptr_t hook = 0;
    torch::Tensor converted;  // a gradient that had to be changed
    torch::Tensor aside;      // a gradient of an earlier batch of this step
    size_t references = 0;
    const void* values = nullptr;  // where they lay
    uint32_t version = 0;          // as autograd counts changes in place
    size_t sampled = 0;            // element whose bits were these
    uint64_t sample = 0;
  };

  struct Frozen {
    ParameterInfo info;  // name and shape
    size_t untrained = 0;
    const void* values = nullptr;
  };

  bool has_sample(const Parameter& parameter) const;
  static uint64_t bits_of(const Parameter& parameter);

  void attach_hooks();
  void detach_hooks();
  static size_t references_of(const torch::Tensor& tensor);

  torch::nn::Module& module_;
  std::vector<Parameter> parameters_;
  std::vector<torch::Tensor> untrained_;                      // frozen parameters and buffers
  std::vector<Frozen> frozen_;                                // of these, the parameters
  std::map<std::string, std::vector<int64_t>> buffer_sizes_;  // when this was made
  std::vector<const void*> found_;  // the trained parameters in the order of the modules, some more than once
  std::vector<size_t> order_;
  bool is_sampled_ = false;
  size_t samples_taken_ = 0;
  std::function<void(size_t)> on_gradient_;
};

}  // namespace muster::detail
