#pragma once

// libtorch's element types as Muster's. Pure; any thread may call it.

#include <optional>
#include <string>

#include <torch/types.h>

#include "muster/dtype.h"

namespace muster::detail {

/// Empty where there is none like it.
std::optional<DType> dtype_of(torch::ScalarType type);

/// All for which there is one: "float32, float64, ...".
std::string names_of_dtypes();

}  // namespace muster::detail
