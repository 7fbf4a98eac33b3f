#pragma once

// What stands behind a Session: the process itself, or a cluster.

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/graph/signature.h"
#include "muster/session.h"

namespace muster {

/// A signature that was made ready. Thread-safe; run() blocks.
struct Callable::State {
  virtual ~State() = default;

  /// `timeline` gets what was done when, unless it is null.
  virtual std::vector<at::Tensor> run(const std::vector<at::Tensor>& feeds, Timeline* timeline) = 0;
};

namespace detail {

/// Thread-safe.
class SessionBackend {
 public:
  virtual ~SessionBackend() = default;
  virtual std::shared_ptr<Callable::State> prepare(const Signature& signature) = 0;
};

}  // namespace detail
}  // namespace muster
