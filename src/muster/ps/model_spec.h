#pragma once

// What the servers of a job must know to train a model: its variables and where they go, the update rule, and
// the mode. The chief makes it and gives it to the servers, and to the other workers, through the
// coordinator.

#include <string>
#include <vector>

#include "muster/base/dtype.h"
#include "muster/ps/placement.h"
#include "muster/ps/policy/update_policy.h"

namespace muster::detail {

struct ModelSpec {
  std::vector<ParameterInfo> variables;
  PlacementKind placement = PlacementKind::kSliced;
  int servers = 1;
  std::string rule;                    ///< of gradients; parse_rule() reads it
  double outer_momentum = 0;           ///< of the averages of ps-local
  double clip_norm = 0;                ///< of averaged gradients
  bool stop_at_nan = false;            ///< a server that is given a gradient that is not finite fails
  DType wire_dtype = DType::kFloat32;  ///< what float32 travels as between hosts
  PolicyOptions policy;

  /// What gradients and parameters of this type travel as.
  DType wire_of(DType dtype) const { return dtype == DType::kFloat32 ? wire_dtype : dtype; }

  std::string to_text() const;

  /// Throws InvalidArgument.
  static ModelSpec parse(const std::string& text);

  /// Differs where specs differ.
  uint64_t fingerprint() const;
};

}  // namespace muster::detail
