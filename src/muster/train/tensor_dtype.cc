#include "muster/train/tensor_dtype.h"

#include <array>
#include <utility>

#include <fmt/format.h>

namespace muster::detail {
namespace {

constexpr std::array<std::pair<torch::ScalarType, DType>, 7> kTypes = {{
    {torch::kFloat32, DType::kFloat32},
    {torch::kFloat64, DType::kFloat64},
    {torch::kFloat16, DType::kFloat16},
    {torch::kBFloat16, DType::kBFloat16},
    {torch::kInt8, DType::kInt8},
    {torch::kInt32, DType::kInt32},
    {torch::kInt64, DType::kInt64},
}};

}  // namespace

std::optional<DType> dtype_of(torch::ScalarType type) {
  for (const auto& [torchs, ours] : kTypes) {
    if (torchs == type) return ours;
  }
  return std::nullopt;
}

std::string names_of_dtypes() {
  std::string names;
  for (const auto& [torchs, ours] : kTypes)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(ours));
  return names;
}

}  // namespace muster::detail
