#include "muster/testing/hosts.h"

#include <unistd.h>

#include <cstdio>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "muster/base/environment.h"
#include "muster/testing/process_cluster.h"
#include "muster/testing/test_main.h"

namespace muster::detail::testing {
namespace {

void ip(std::vector<std::string> arguments) {
  ProcessCluster cluster;
  arguments.insert(arguments.begin(), "ip");
  const auto result = cluster.wait(cluster.start({.command = arguments}), soon());
  EXPECT_EQ(result.exit_code, 0) << "network namespaces need root: "
                                 << fmt::format("{}", fmt::join(arguments, " ")) << ": " << result.output;
}

}  // namespace

Hosts::Hosts(int count) : count_(count) {
  const std::string centre = name(count_);
  for (int host = 0; host <= count_; ++host) ip({"netns", "add", name(host)});
  ip({"-n", centre, "link", "add", "switch", "type", "bridge"});
  ip({"-n", centre, "link", "set", "switch", "up"});
  for (int host = 0; host < count_; ++host) {
    ip({"link", "add", "eth0", "netns", name(host), "type", "veth", "peer", "name", port(host), "netns",
        centre});
    ip({"-n", name(host), "address", "add", address(host) + "/24", "dev", "eth0"});
    ip({"-n", name(host), "link", "set", "eth0", "up"});
    ip({"-n", name(host), "link", "set", "lo", "up"});
    ip({"-n", centre, "link", "set", port(host), "master", "switch"});
    ip({"-n", centre, "link", "set", port(host), "up"});
  }
}

Hosts::~Hosts() {
  for (int host = 0; host <= count_; ++host) ip({"netns", "delete", name(host)});
}

std::vector<std::string> Hosts::on(int host, std::vector<std::string> command) const {
  command.insert(command.begin(), {"ip", "netns", "exec", name(host)});
  return command;
}

std::string Hosts::address(int host) const {
  return fmt::format("10.77.0.{}", host + 1);
}

void Hosts::unplug(int host) const {
  ip({"-n", name(count_), "link", "set", port(host), "down"});
}

void Hosts::drop_packets(int host) const {
  ip({"-n", name(count_), "link", "set", port(host), "nomaster"});
}

std::string Hosts::name(int host) const {
  return fmt::format("muster-test-{}-{}", getpid(), host);
}

std::string Hosts::port(int host) const {
  return fmt::format("port{}", host);
}

int run_tests_with_hosts(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (geteuid() != 0 && first != "--gtest_list_tests" && first.rfind("--task-main", 0) != 0) {
    // `ip netns` keeps its files in /run, which must be ours too.
    std::vector<std::string> command = {"unshare",
                                        "--user",
                                        "--map-root-user",
                                        "--mount",
                                        "--net",
                                        "sh",
                                        "-c",
                                        "mount -t tmpfs tmpfs /run && exec \"$0\" \"$@\"",
                                        self_path()};
    command.insert(command.end(), argv + 1, argv + argc);
    const auto arguments = exec_pointers(command);
    execvp(arguments[0], arguments.data());
    perror("unshare");
    return 1;
  }
  return run_tests(argc, argv);
}

}  // namespace muster::detail::testing
