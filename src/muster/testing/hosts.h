#pragma once

// Hosts on one machine, as network namespaces that are cabled to a switch: 10.77.0.1, 10.77.0.2, ... They
// reach each other and nothing else. They are made and removed by this object, which needs root, or a user
// namespace in which we are root: run_tests_with_hosts() sees to that.
//
//   Hosts hosts(3);
//   cluster.start({.command = hosts.on(1, {program, "--flag"})});
//   hosts.unplug(1);

#include <string>
#include <vector>

namespace muster::detail::testing {

class Hosts {
 public:
  explicit Hosts(int count);
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  /// The command as it runs on a host, numbered from 0.
  std::vector<std::string> on(int host, std::vector<std::string> command) const;
  std::string address(int host) const;

  /// The cable is pulled: the host sees its link go down.
  void unplug(int host) const;

  /// The switch drops whatever comes from or goes to the host, which sees nothing of it.
  void drop_packets(int host) const;

 private:
  std::string name(int host) const;
  std::string port(int host) const;

  const int count_;
};

/// As run_tests(), as root of a user namespace when we are not root.
int run_tests_with_hosts(int argc, char** argv);

}  // namespace muster::detail::testing
