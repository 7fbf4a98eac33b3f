#include "muster/net/secret.h"

#include <array>
#include <cstring>

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "muster/base/error.h"

namespace muster {

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

std::string random_bytes(size_t bytes) {
  std::string result(bytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(result.data()), static_cast<int>(bytes)) != 1) {
    raise<SystemError>("the operating system gave no random bytes");
  }
  return result;
}

uint64_t random_number() {
  uint64_t number = 0;
  std::memcpy(&number, random_bytes(sizeof(number)).data(), sizeof(number));
  return number;
}

std::string random_token() {
  std::string token;
  for (const char byte : random_bytes(16)) token += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return token;
}

}  // namespace muster
