#pragma once

// The element types that collectives reduce and move.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace muster {

enum class DType : uint8_t { kFloat32, kFloat64, kFloat16, kBFloat16, kInt8, kInt32, kInt64 };

constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
      return 1;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    default:
      return 4;
  }
}

const char* name_of(DType dtype);  ///< "float32", "bfloat16", ...

/// The inverse of name_of; also takes fp32, fp64, fp16 and bf16. Throws InvalidArgument.
DType parse_dtype(std::string_view name);

}  // namespace muster
