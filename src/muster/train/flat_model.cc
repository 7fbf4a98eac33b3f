#include "muster/train/flat_model.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "muster/base/error.h"
#include "muster/train/tensor_dtype.h"

namespace muster::detail {
namespace {

DType trained_dtype(const std::string& name, const torch::Tensor& tensor) {
  const auto dtype = dtype_of(tensor.scalar_type());
  if (!dtype || !tensor.is_floating_point())
    raise<InvalidArgument>("the parameter {} is of type {}, which can't be trained", name,
                           c10::toString(tensor.scalar_type()));
  return *dtype;
}

std::string line_of(const std::string& kind, const std::string& name, const torch::Tensor& tensor) {
  return fmt::format("{} {} {} [{}]", kind, name, c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "));
}

// Values are copied into the tensors of a module, the chief's and those that were kept.
void check_tensor(const std::string& kind, const std::string& name, const torch::Tensor& tensor) {
  if (!tensor.defined()) return;
  if (tensor.layout() != torch::kStrided)
    raise<InvalidArgument>("the {} {} is sparse: only dense tensors can be made the chief's", kind, name);
  if (tensor.is_inference())
    raise<InvalidArgument>(
        "the {} {} was made within torch::InferenceMode, outside of which it can't be changed: make the "
        "module outside of it",
        kind, name);
  if (tensor.requires_grad() && !tensor.is_leaf())
    raise<InvalidArgument>(
        "the {} {} is the result of a computation, through which autograd would go on: register a tensor of "
        "its own, as by .detach().clone()",
        kind, name);
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.stride(i) == 0 && tensor.size(i) > 1 && tensor.numel() > 0)
      raise<InvalidArgument>(
          "several elements of the {} {} lie in the same memory, as after expand(): register a copy of it, "
          "as by .contiguous()",
          kind, name);
  }
}

/// Calls back when a gradient has been accumulated.
class GradientHook : public torch::autograd::FunctionPostHook {
 public:
  explicit GradientHook(std::function<void()> call) : call_(std::move(call)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    call_();
    return outputs;
  }

 private:
  const std::function<void()> call_;
};

std::vector<std::pair<std::string, torch::Tensor>> trained(torch::nn::Module& module) {
  std::vector<std::pair<std::string, torch::Tensor>> found;
  std::set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    const auto& tensor = item.value();
    if (tensor.defined() && tensor.requires_grad() && seen.insert(tensor.unsafeGetTensorImpl()).second)
      found.emplace_back(item.key(), tensor);
  }
  return found;
}

// Those of the tensor where it is dense, so that a layout other than the usual, as channels-last, is kept.
std::vector<int64_t> dense_strides(const torch::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  std::vector<int64_t> strides(static_cast<size_t>(tensor.dim()), 1);
  for (size_t i = strides.size(); i-- > 1;)
    strides[i - 1] = strides[i] * tensor.size(static_cast<int64_t>(i));
  return strides;
}

// Calls `visit` with each parameter that requires a gradient, in the order of the modules, also where several
// names have it, until it says false. Without full names: this runs before every step.
template <typename Visit>
bool visit_trained(const torch::nn::Module& module, const Visit& visit) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (item.value().defined() && item.value().requires_grad() && !visit(item.value())) return false;
  }
  const auto children = module.children();
  return std::all_of(children.begin(), children.end(),
                     [&](const auto& child) { return visit_trained(*child, visit); });
}

}  // namespace

FlatModel::FlatModel(torch::nn::Module& module) : module_(module) {
  for (const auto& item : module_.named_parameters()) check_tensor("parameter", item.key(), item.value());
  for (const auto& item : module_.named_buffers()) {
    check_tensor("buffer", item.key(), item.value());
    if (item.value().defined()) buffer_sizes_[item.key()] = item.value().sizes().vec();
  }
  visit_trained(module_, [this](const torch::Tensor& tensor) {
    found_.push_back(tensor.unsafeGetTensorImpl());
    return true;
  });
  for (auto& [name, tensor] : trained(module)) {
    if (!tensor.device().is_cpu())
      raise<InvalidArgument>("the parameter {} is on {}: Muster trains on the CPU", name,
                             tensor.device().str());
    ParameterInfo info = {.name = name, .shape = tensor.sizes().vec(), .dtype = trained_dtype(name, tensor)};
    parameters_.push_back({.info = std::move(info), .tensor = tensor});
  }
  for (const auto& tensor : tensors()) {
    const auto is_same = [&](const Parameter& parameter) { return parameter.tensor.is_same(tensor); };
    if (tensor.defined() && std::ranges::none_of(parameters_, is_same)) untrained_.push_back(tensor);
  }
  for (const auto& item : module_.named_parameters()) {
    const auto is_same = [&](const torch::Tensor& tensor) { return tensor.is_same(item.value()); };
    const auto found = std::ranges::find_if(untrained_, is_same);
    if (found == untrained_.end()) continue;
    frozen_.push_back({.info = {.name = item.key(), .shape = found->sizes().vec()},
                       .untrained = static_cast<size_t>(found - untrained_.begin())});
  }
  for (const auto& parameter : parameters_) refuse_if_trained(parameter.info.name, parameter.tensor);
  attach_hooks();
}

FlatModel::~FlatModel() {
  detach_hooks();
}

// Who trains a parameter has a hook at the node that accumulates its gradient.
bool FlatModel::is_trained(const torch::autograd::Node& accumulator) {
  return std::ranges::any_of(accumulator.post_hooks(), [](const auto& hook) {
    return dynamic_cast<const GradientHook*>(hook.get()) != nullptr;
  });
}

void FlatModel::refuse_if_trained(const std::string& name, const torch::Tensor& parameter) {
  const auto node = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!node || !is_trained(*node)) return;
  raise<InvalidArgument>(
      "the parameter {} is trained by another Trainer: a parameter has one at a time; destroy that one "
      "first, or keep the parameter out of this module",
      name);
}

void FlatModel::attach_hooks() {
  for (size_t i = 0; i < size(); ++i) {
    auto& parameter = parameters_[i];
    parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.tensor);
    parameter.hook = parameter.accumulator->add_post_hook(std::make_unique<GradientHook>([this, i] {
      if (order_.size() < size()) order_.push_back(i);
      if (on_gradient_) on_gradient_(i);
    }));
  }
}

void FlatModel::detach_hooks() {
  for (auto& parameter : parameters_) {
    if (parameter.accumulator) parameter.accumulator->del_post_hook(parameter.hook);
    parameter.accumulator.reset();
  }
}

std::vector<ParameterInfo> FlatModel::infos() const {
  std::vector<ParameterInfo> infos;
  for (const auto& parameter : parameters_) infos.push_back(parameter.info);
  return infos;
}

std::string FlatModel::signature() const {
  std::string text;
  for (const auto& item : module_.named_parameters()) {
    const auto& tensor = item.value();
    text += line_of(tensor.requires_grad() ? "parameter" : "frozen parameter", item.key(), tensor);
    if (tensor.is_non_overlapping_and_dense() && !tensor.is_contiguous())  // move_to keeps it
      text += fmt::format(" with strides [{}]", fmt::join(tensor.strides(), ", "));
    text += "\n";
  }
  for (const auto& item : module_.named_buffers()) text += line_of("buffer", item.key(), item.value()) + "\n";
  return text;
}

std::vector<torch::Tensor> FlatModel::tensors() const {
  std::vector<torch::Tensor> found = module_.parameters();
  const auto more = buffers();
  found.insert(found.end(), more.begin(), more.end());
  return found;
}

std::vector<torch::Tensor> FlatModel::buffers() const {
  std::vector<torch::Tensor> found;
  for (const auto& buffer : module_.buffers()) {
    if (buffer.defined() && buffer.numel() > 0) found.push_back(buffer);
  }
  return found;
}

std::string FlatModel::resized_buffers() const {
  std::string text;
  for (const auto& item : module_.named_buffers()) {
    const auto before = buffer_sizes_.find(item.key());
    if (before == buffer_sizes_.end() || !item.value().defined() || item.value().sizes() == before->second)
      continue;
    text += fmt::format("{}{} [{}] instead of [{}]", text.empty() ? "" : ", ", item.key(),
                        fmt::join(item.value().sizes(), ", "), fmt::join(before->second, ", "));
  }
  return text;
}

std::vector<std::pair<std::string, torch::Tensor>> FlatModel::frozen() const {
  std::vector<std::pair<std::string, torch::Tensor>> found;
  for (const auto& parameter : frozen_)
    found.emplace_back(parameter.info.name, untrained_[parameter.untrained]);
  return found;
}

bool FlatModel::has_changed() const {
  size_t next = 0;
  const auto is_next = [&](const torch::Tensor& tensor) {
    return next < found_.size() && found_[next++] == tensor.unsafeGetTensorImpl();
  };
  return !visit_trained(module_, is_next) || next != found_.size();
}

std::string FlatModel::what_changed() const {
  const auto now = trained(module_);
  for (const auto& [name, tensor] : now) {
    const auto is_same = [&](const Parameter& parameter) { return parameter.tensor.is_same(tensor); };
    if (std::ranges::none_of(parameters_, is_same))
      return fmt::format("the parameter {} is trained now, and was not before", name);
  }
  for (const auto& parameter : parameters_) {
    const auto is_same = [&](const auto& item) { return item.second.is_same(parameter.tensor); };
    if (std::ranges::none_of(now, is_same))
      return fmt::format("the parameter {} is not trained any more", parameter.info.name);
  }
  return "they come in another order";
}

std::optional<std::pair<std::string, std::string>> FlatModel::sharing_memory() const {
  struct Extent {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    const std::string* name = nullptr;
  };
  std::vector<Extent> extents;
  for (const auto& parameter : parameters_) {
    const auto& tensor = parameter.tensor;
    if (tensor.numel() == 0) continue;
    int64_t last = 0;  // element
    for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
    const auto* begin = static_cast<const std::byte*>(tensor.data_ptr());
    extents.push_back({begin, begin + (last + 1) * tensor.element_size(), &parameter.info.name});
  }
  std::ranges::sort(extents, {}, &Extent::begin);
  for (size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin < extents[i - 1].end) return std::pair(*extents[i - 1].name, *extents[i].name);
  }
  return std::nullopt;
}

const ParameterInfo* FlatModel::aliased() const {
  std::map<const void*, long> ours;  // how many of the module's tensors lie in a storage
  std::set<const void*> seen;
  for (const auto& tensor : tensors()) {
    if (tensor.defined() && tensor.has_storage() && seen.insert(tensor.unsafeGetTensorImpl()).second)
      ++ours[tensor.storage().unsafeGetStorageImpl()];
  }
  for (const auto& parameter : parameters_) {
    const auto& storage = parameter.tensor.storage();
    // A view, as of t(), has its base, which may be nobody else's.
    const bool is_view = parameter.tensor.is_view();
    if (is_view && parameter.tensor._base().use_count() > 1) return &parameter.info;
    const long expected = ours[storage.unsafeGetStorageImpl()] + (is_view ? 1 : 0);
    if (static_cast<long>(storage.use_count()) > expected) return &parameter.info;
  }
  return nullptr;
}

torch::Tensor FlatModel::laid_out(size_t parameter) const {
  const torch::NoGradGuard no_grad;
  const auto tensor = parameters_[parameter].tensor.detach();
  const auto strides = dense_strides(tensor);
  if (tensor.strides() == strides) return tensor;
  return torch::empty_strided(tensor.sizes(), strides, tensor.options()).copy_(tensor);
}

bool FlatModel::is_abandoned() const {
  constexpr size_t kOurs = 2;  // this and the node that accumulates its gradient
  const auto is_ours = [](const Parameter& parameter) { return parameter.tensor.use_count() <= kOurs; };
  return !parameters_.empty() && std::ranges::all_of(parameters_, is_ours) &&
         std::ranges::all_of(untrained_, [](const torch::Tensor& tensor) { return tensor.use_count() <= 1; });
}

std::vector<size_t> FlatModel::order() const {
  std::vector<size_t> order;
  std::vector<bool> seen(size());
  for (const size_t i : order_) {
    if (!seen[i]) order.push_back(i);
    seen[i] = true;
  }
  for (size_t i = size(); i-- > 0;) {
    if (!seen[i]) order.push_back(i);
  }
  return order;
}

void FlatModel::reorder(const std::vector<size_t>& order) {
  detach_hooks();
  std::vector<Parameter> sorted;
  for (const size_t i : order) sorted.push_back(std::move(parameters_[i]));
  parameters_ = std::move(sorted);
  order_.clear();
  attach_hooks();
}

void FlatModel::move_to(const FlatLayout& layout, const std::shared_ptr<std::byte>& memory, bool fill) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < size(); ++i) {
    auto& tensor = parameters_[i].tensor;
    if (trained_dtype(info(i).name, tensor) != info(i).dtype || tensor.sizes() != info(i).shape)
      raise<InvalidArgument>("the parameter {} has another type or shape now", info(i).to_string());
    const auto keep = [memory](void*) {};
    auto view = torch::from_blob(memory.get() + layout.offset(i), tensor.sizes(), dense_strides(tensor), keep,
                                 tensor.options().requires_grad(false));
    if (fill) view.copy_(tensor);
    tensor.set_data(view);
  }
  note_references_after();
}

// Between the elements of a tensor that is not dense, others' lie.
bool FlatModel::has_sample(const Parameter& parameter) const {
  return is_sampled_ && parameter.tensor.numel() > 0 && parameter.tensor.is_non_overlapping_and_dense();
}

// Of the sampled element, as it lies in memory.
uint64_t FlatModel::bits_of(const Parameter& parameter) {
  uint64_t bits = 0;
  const auto size = parameter.tensor.element_size();
  memcpy(&bits, static_cast<const std::byte*>(parameter.tensor.data_ptr()) + parameter.sampled * size, size);
  return bits;
}

void FlatModel::note_values() {
  constexpr size_t kStride = 7919;  // a prime, so that it comes to all elements
  ++samples_taken_;
  for (auto& parameter : parameters_) {
    parameter.version = parameter.tensor.unsafeGetTensorImpl()->version_counter().current_version();
    if (!has_sample(parameter)) continue;
    parameter.sampled = samples_taken_ * kStride % static_cast<size_t>(parameter.tensor.numel());
    parameter.sample = bits_of(parameter);
  }
}

void FlatModel::note_values_and_memory() {
  note_values();
  for (auto& parameter : parameters_) parameter.values = parameter.tensor.data_ptr();
  for (auto& parameter : frozen_) parameter.values = untrained_[parameter.untrained].data_ptr();
}

const ParameterInfo* FlatModel::moved() const {
  for (const auto& parameter : parameters_) {
    if (parameter.tensor.data_ptr() != parameter.values) return &parameter.info;
  }
  for (const auto& parameter : frozen_) {
    if (untrained_[parameter.untrained].data_ptr() != parameter.values) return &parameter.info;
  }
  return nullptr;
}

const ParameterInfo* FlatModel::written() const {
  for (const auto& parameter : parameters_) {
    const auto version = parameter.tensor.unsafeGetTensorImpl()->version_counter().current_version();
    if (version != parameter.version && parameter.tensor.data_ptr() == parameter.values)
      return &parameter.info;
  }
  return nullptr;
}

const ParameterInfo* FlatModel::written_unseen() const {
  for (const auto& parameter : parameters_) {
    if (has_sample(parameter) && parameter.tensor.data_ptr() == parameter.values &&
        bits_of(parameter) != parameter.sample)
      return &parameter.info;
  }
  return nullptr;
}

// Into the memory that autograd gave it, so that an optimizer may do with it as it likes.
void FlatModel::set_gradient(size_t parameter, std::byte* values) {
  const torch::NoGradGuard no_grad;
  auto& tensor = parameters_[parameter].tensor;
  const auto view =
      torch::from_blob(values, tensor.sizes(), dense_strides(tensor), tensor.options().requires_grad(false));
  auto& gradient = tensor.mutable_grad();
  if (!gradient.defined() || gradient.is_sparse()) gradient = torch::empty_like(tensor);
  gradient.copy_(view);
}

void FlatModel::move_back() {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : parameters_) parameter.tensor.set_data(parameter.tensor.detach().clone());
}

void FlatModel::drop_gradients() {
  for (auto& parameter : parameters_) parameter.tensor.mutable_grad().reset();
}

void FlatModel::clear_gradients() {
  drop_gradients();
  for (auto& parameter : parameters_) {
    parameter.converted.reset();
    parameter.aside.reset();
  }
}

void FlatModel::set_gradients_aside() {
  for (auto& parameter : parameters_) parameter.aside = std::exchange(parameter.tensor.mutable_grad(), {});
}

void FlatModel::put_gradients_back() {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : parameters_) {
    if (!parameter.aside.defined()) continue;
    auto& gradient = parameter.tensor.mutable_grad();
    gradient = gradient.defined() ? parameter.aside + gradient : parameter.aside;
    parameter.aside.reset();
  }
}

void FlatModel::scale_gradients(double factor) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : parameters_) {
    if (auto& gradient = parameter.tensor.mutable_grad(); gradient.defined()) gradient = gradient * factor;
  }
}

void FlatModel::note_update() {
  for (auto& parameter : parameters_) {
    if (parameter.tensor.grad().defined()) parameter.tensor.unsafeGetTensorImpl()->bump_version();
  }
}

const void* FlatModel::gradient(size_t parameter) {
  auto& entry = parameters_[parameter];
  torch::Tensor gradient = entry.tensor.grad();
  if (!gradient.defined()) return nullptr;
  const auto& like = entry.tensor;
  const auto strides = dense_strides(like);
  if (gradient.is_sparse() || gradient.scalar_type() != like.scalar_type() || gradient.strides() != strides) {
    const torch::NoGradGuard no_grad;
    entry.converted = torch::empty_strided(like.sizes(), strides, like.options().requires_grad(false));
    entry.converted.copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
    gradient = entry.converted;
  }
  return gradient.data_ptr();
}

// Of the tensor and of its memory: a graph keeps the one or the other.
size_t FlatModel::references_of(const torch::Tensor& tensor) {
  return tensor.use_count() + static_cast<size_t>(tensor.storage().use_count());
}

void FlatModel::note_references_after() {
  for (auto& parameter : parameters_) parameter.references = references_of(parameter.tensor);
}

void FlatModel::note_references_before() {
  for (auto& parameter : parameters_)
    parameter.references = std::min(parameter.references, references_of(parameter.tensor));
}

bool FlatModel::held(size_t parameter) const {
  return references_of(parameters_[parameter].tensor) > parameters_[parameter].references;
}

}  // namespace muster::detail
