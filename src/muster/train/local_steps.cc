#include "muster/train/local_steps.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "muster/base/copy.h"
#include "muster/base/dtype.h"

namespace muster::detail {
namespace {

template <typename T>
auto number(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return value;
  } else {
    return to_float(value);
  }
}

void assign(double value, double& to) {
  to = value;
}
void assign(float value, float& to) {
  to = value;
}
void assign(float value, Float16& to) {
  to = to_float16(value);
}
void assign(float value, BFloat16& to) {
  to = to_bfloat16(value);
}

template <typename T, typename Wide>
void subtract_as(const std::byte* anchor, const std::byte* values, std::byte* delta, size_t count) {
  for (size_t i = 0; i < count; ++i)
    assign(number(reinterpret_cast<const T*>(anchor)[i]) - reinterpret_cast<const Wide*>(values)[i],
           reinterpret_cast<T*>(delta)[i]);
}

// delta = anchor - values: these are in the state's type.
void subtract(DType dtype, const std::byte* anchor, const std::byte* values, std::byte* delta, size_t count) {
  switch (dtype) {
    case DType::kFloat64:
      return subtract_as<double, double>(anchor, values, delta, count);
    case DType::kFloat16:
      return subtract_as<Float16, float>(anchor, values, delta, count);
    case DType::kBFloat16:
      return subtract_as<BFloat16, float>(anchor, values, delta, count);
    default:
      return subtract_as<float, float>(anchor, values, delta, count);
  }
}

}  // namespace

LocalSteps::LocalSteps(const Options& options)
    : layout_(options.layout),
      parameters_(options.parameters),
      update_({.layout = options.layout,
               .rule = options.rule,
               .parameters = options.parameters,
               .clip_norm = options.clip_norm}),
      gradients_(layout_.size(), nullptr),
      anchor_(std::static_pointer_cast<std::byte>(options.allocate(layout_.bytes()))),
      delta_(std::static_pointer_cast<std::byte>(options.allocate(layout_.bytes()))) {}

void LocalSteps::anchor() {
  copy_bytes(anchor_.get(), parameters_, layout_.bytes());
  update_.adopt_parameters();
}

bool LocalSteps::is_at_anchor() const {
  return std::memcmp(anchor_.get(), parameters_, layout_.bytes()) == 0;
}

void LocalSteps::begin() {
  std::ranges::fill(gradients_, nullptr);
}

ShardUpdate::Result LocalSteps::update(const StepStart& start) {
  return update_.apply({.sources = {{.gradients = &gradients_}},
                        .divisor = start.total,
                        .lr = start.lr,
                        .gradient_scale = start.gradient_scale * start.weight});
}

void LocalSteps::count_step(int64_t samples) {
  ++count_;
  samples_ += samples;
}

const void* LocalSteps::delta(size_t parameter) {
  const size_t offset = layout_.offset(parameter);
  std::byte* delta = delta_.get() + offset;
  subtract(layout_[parameter].dtype, anchor_.get() + offset, update_.values(parameter), delta,
           layout_[parameter].count());
  return delta;
}

}  // namespace muster::detail
