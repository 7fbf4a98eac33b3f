#include "muster/net/secret.h"

#include <array>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "muster/base/error.h"

namespace muster::detail {

std::string Secret::prove(std::string_view challenge) const {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  if (HMAC(EVP_sha256(), text_.data(), static_cast<int>(text_.size()),
           reinterpret_cast<const unsigned char*>(challenge.data()), challenge.size(), digest.data(),
           &size) == nullptr) {
    raise<SystemError>("HMAC-SHA256 is not available in this OpenSSL");
  }
  return {reinterpret_cast<const char*>(digest.data()), size};
}

bool Secret::verify(std::string_view challenge, std::string_view proof) const {
  const std::string expected = prove(challenge);
  return proof.size() == expected.size() &&
         CRYPTO_memcmp(proof.data(), expected.data(), expected.size()) == 0;
}

}  // namespace muster::detail
