#pragma once

// The job's secret, and proofs of knowing it. The secret itself never crosses the network: a task that is
// asked gives HMAC-SHA256(secret, challenge), where the challenge holds a nonce of the side that asks. Values
// and pure functions: any thread may use them.

#include <string>
#include <string_view>

namespace muster::detail {

class Secret {
 public:
  explicit Secret(std::string text) : text_(std::move(text)) {}

  /// A proof of knowing the secret, for one challenge; 32 bytes.
  std::string prove(std::string_view challenge) const;

  /// Whether `proof` answers `challenge`; takes the same time whatever the difference.
  bool verify(std::string_view challenge, std::string_view proof) const;

 private:
  std::string text_;
};

}  // namespace muster::detail
