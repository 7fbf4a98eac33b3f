#pragma once

// TLS for links: both sides show a certificate that the job's authority has signed. Without files there is
// no TLS.
//
// A TlsContext is immutable, and may be used by several threads at once; it must outlive start(), not the
// sessions. A session belongs to the Connection that it is given to. Nothing here blocks.

#include <memory>
#include <string>

// OpenSSL's own names, so that no header of ours needs theirs.
using SSL = struct ssl_st;
using SSL_CTX = struct ssl_ctx_st;

namespace muster::detail {

struct TlsFiles {
  std::string certificate;  ///< PEM, this task's, with the chain behind it
  std::string key;          ///< PEM
  std::string authority;    ///< PEM, whoever signed the peers' certificates

  bool empty() const { return certificate.empty() && key.empty() && authority.empty(); }
};

class TlsContext {
 public:
  /// Throws InvalidArgument that names the file that is missing, unreadable or does not fit.
  explicit TlsContext(const TlsFiles& files);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  /// A session over a connected socket, as the side that accepted or the one that connected.
  SSL* start(int fd, bool accepting) const;

 private:
  SSL_CTX* context_;
};

/// What OpenSSL says was wrong last; clears it.
std::string tls_error();

}  // namespace muster::detail
