#pragma once

// This task's data port: where its peers connect to carry tensors. It listens on a TCP port, and for peers on
// the same host on a socket in the abstract namespace (which belongs to the network namespace and leaves
// nothing in any file system). A connection has a channel name, by which the two sides find each other.
//
//   one side:    Connection c = endpoint.connect({"10.0.0.7", 4711}, "world/control/3", deadline);
//   other side:  Connection c = endpoint.accept("world/control/3", deadline);
//
// Both sides prove that they know the job's secret before anything else is read:
//
//   connecting                                 accepting
//   magic, nonce, name                     ->
//                                          <-  nonce
//   HMAC(secret, "connect", nonces, name)  ->
//                                          <-  HMAC(secret, "accept", nonces, name)
//
// Whoever says anything else is dropped and logged, at a bounded rate. Whoever says nothing may be slow: it
// is logged, and dropped only when very many connections have not proved themselves.
//
// Thread-safe. A thread of its own takes connections and hears their proofs, so that nobody has to be in
// accept() for a peer to connect. connect and accept block, to their deadline. Connections belong to whoever
// gets them, and outlive the Endpoint.

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "muster/base/descriptor.h"
#include "muster/base/log_limit.h"
#include "muster/base/mutex.h"
#include "muster/deadline.h"
#include "muster/net/address.h"
#include "muster/net/connection.h"
#include "muster/net/secret.h"
#include "muster/net/tls.h"

namespace muster::detail {

class Endpoint {
 public:
  struct Options {
    std::string host = "127.0.0.1";  ///< the address to listen on, as peers will know it
    int port = 0;                    ///< 0: any free one
    std::string secret;
    TlsFiles tls;  ///< empty: none
  };

  /// Throws SystemError when the port can't be had, InvalidArgument for TLS files that don't work.
  explicit Endpoint(const Options& options);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  const Address& address() const { return address_; }
  const std::string& local_name() const { return local_name_; }  ///< for peers on this host

  /// Called now and then while waiting; it may throw.
  using Check = std::function<void()>;

  /// Throws Refused when the other side does not know the secret, or TLS fails; PeerLost when nobody is there,
  /// or somebody who ends before it has accepted us; DeadlineExceeded.
  Connection connect(const Address& address, const std::string& channel_name, Deadline deadline,
                     const Check& check = {});
  Connection connect_local(const std::string& local_name, const std::string& channel_name, Deadline deadline,
                           const Check& check = {});

  /// The connection that a peer has made, or will make, under this name.
  Connection accept(const std::string& channel_name, Deadline deadline, const Check& check = {});

  /// The same for any channel name that begins with `prefix`; gives the name too.
  std::pair<std::string, Connection> accept_any(const std::string& prefix, Deadline deadline,
                                                const Check& check = {});

 private:
  struct Pending;  // a connection that has not proved itself yet
  void run();
  void admit(int listener, std::list<Pending>& pending);
  bool advance(Pending& pending);
  void warn(const std::string& text);
  template <typename Find>
  std::pair<std::string, Connection> wait_for(const Find& find, const std::string& channel_name,
                                              Deadline deadline, const Check& check);
  Connection introduce(Descriptor descriptor, bool over_tcp, const std::string& channel_name,
                       Deadline deadline, const Check& check);

  const Secret secret_;
  std::unique_ptr<TlsContext> tls_;
  Address address_;
  std::string local_name_;
  Descriptor tcp_;
  Descriptor local_;
  Descriptor stop_;
  LogLimit warnings_;  // of the thread that takes connections

  Mutex mutex_;
  ConditionVariable arrived_;
  std::multimap<std::string, Connection> waiting_ MUSTER_GUARDED_BY(mutex_);  // proved, not yet accepted

  std::thread thread_;
};

}  // namespace muster::detail
