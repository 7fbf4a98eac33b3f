#include "muster/net/secret.h"

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

TEST(Secret, AProofHoldsForItsSecretAndChallengeOnly) {
  const Secret secret("s1");
  const std::string proof = secret.prove("nonce");
  EXPECT_EQ(proof.size(), 32u);
  EXPECT_TRUE(secret.verify("nonce", proof));
  EXPECT_FALSE(secret.verify("other", proof));
  EXPECT_FALSE(Secret("s2").verify("nonce", proof));
  EXPECT_FALSE(secret.verify("nonce", proof.substr(1)));
  EXPECT_FALSE(secret.verify("nonce", ""));
}

}  // namespace
}  // namespace muster::detail
