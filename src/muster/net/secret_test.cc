#include "muster/net/secret.h"

#include <gtest/gtest.h>

namespace muster {
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

TEST(RandomToken, DoesNotRepeat) {
  EXPECT_EQ(random_token().size(), 32u);
  EXPECT_NE(random_token(), random_token());
}

}  // namespace
}  // namespace muster
