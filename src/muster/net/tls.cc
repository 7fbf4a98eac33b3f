#include "muster/net/tls.h"

#include <array>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "muster/base/error.h"

namespace muster::detail {

std::string tls_error() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "the other side ended the handshake";
  std::array<char, 256> text{};
  ERR_error_string_n(code, text.data(), text.size());
  const std::string whole = text.data();  // error:80000002:system library::No such file or directory
  const size_t reason = whole.rfind(':') + 1;
  return reason < whole.size() ? whole.substr(reason) : whole;
}

TlsContext::TlsContext(const TlsFiles& files) : context_(nullptr) {
  for (const auto& [flag, path] : {std::pair{"--tls-cert", &files.certificate},
                                   {"--tls-key", &files.key},
                                   {"--tls-ca", &files.authority}}) {
    if (path->empty())
      raise<InvalidArgument>("TLS needs --tls-cert, --tls-key and --tls-ca together: {} is not given", flag);
  }
  context_ = SSL_CTX_new(TLS_method());
  if (context_ == nullptr) raise<SystemError>("TLS is not available: {}", tls_error());
  SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION);
  SSL_CTX_set_mode(context_, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_verify(context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  const auto fail = [this](const char* flag, const std::string& path) {
    SSL_CTX_free(context_);
    context_ = nullptr;
    raise<InvalidArgument>("{} {}: {}", flag, path, tls_error());
  };
  if (SSL_CTX_use_certificate_chain_file(context_, files.certificate.c_str()) != 1)
    fail("--tls-cert", files.certificate);
  // A key of the certificate's type is compared with it here, one of another type below.
  if (SSL_CTX_use_PrivateKey_file(context_, files.key.c_str(), SSL_FILETYPE_PEM) != 1)
    fail("--tls-key", files.key);
  if (SSL_CTX_check_private_key(context_) != 1) fail("--tls-key", files.key);
  if (SSL_CTX_load_verify_locations(context_, files.authority.c_str(), nullptr) != 1)
    fail("--tls-ca", files.authority);
}

TlsContext::~TlsContext() {
  SSL_CTX_free(context_);
}

SSL* TlsContext::start(int fd, bool accepting) const {
  SSL* session = SSL_new(context_);
  if (session == nullptr || SSL_set_fd(session, fd) != 1) {
    SSL_free(session);
    raise<SystemError>("TLS: {}", tls_error());
  }
  if (accepting) {
    SSL_set_accept_state(session);
  } else {
    SSL_set_connect_state(session);
  }
  return session;
}

}  // namespace muster::detail
