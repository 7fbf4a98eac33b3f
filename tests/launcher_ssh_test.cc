// `muster run --hosts`: launchers that are started by a real ssh. Its server is a real one too, for each
// connection, without a port or a network: both hosts are this one, by two of its addresses.

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/testing/process_cluster.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using testing::beside_self;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProcessCluster;
using testing::soon;

class SshLauncherTest : public ::testing::Test {
 protected:
  SshLauncherTest() {
    std::filesystem::create_directories(folder);
    for (const char* key : {"client", "server"}) {
      const auto made = run({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key});
      EXPECT_EQ(made.exit_code, 0) << made.output;
    }
    // As root, sshd gives up its rights in this folder, which Debian makes when the service starts.
    if (geteuid() == 0) std::filesystem::create_directories("/run/sshd");
    std::ofstream(folder / "sshd_config")
        << "HostKey " << (folder / "server").string() << "\nAuthorizedKeysFile "
        << (folder / "client.pub").string()
        << "\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\nAcceptEnv *SAN_OPTIONS\n";
    std::ofstream(folder / "ssh_config")
        << "Host 127.0.0.9\n  ProxyCommand false\n"
        << "Host *\n  ProxyCommand /usr/sbin/sshd -i -f " << (folder / "sshd_config").string()
        << "\n  IdentityFile " << (folder / "client").string()
        << "\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
           "  LogLevel ERROR\n  BatchMode yes\n  SendEnv *SAN_OPTIONS\n";
  }
  ~SshLauncherTest() override { std::filesystem::remove_all(folder); }

  int start(std::vector<std::string> arguments, std::map<std::string, std::string> environment = {}) {
    arguments.insert(arguments.begin(), {beside_self("muster"), "run", "--ssh",
                                         fmt::format("ssh -F {}", (folder / "ssh_config").string())});
    return cluster.start({.command = arguments, .environment = std::move(environment)});
  }
  ProcessCluster::Result run(std::vector<std::string> command) {
    return cluster.wait(cluster.start({.command = std::move(command)}), soon());
  }
  bool nothing_left() {
    const auto deadline = soon();
    while (!testing::processes_mentioning(mark).empty()) {
      if (deadline.expired()) return false;
      std::this_thread::sleep_for(10ms);
    }
    return true;
  }

  // A number that marks the processes of this test on their command lines.
  const std::string mark = fmt::format("8{}.{}", getpid(), std::rand() % 100000);
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / ("muster-ssh-" + mark);
  ProcessCluster cluster;
};

constexpr const char* kHosts = "127.0.0.1,127.0.0.2";

TEST_F(SshLauncherTest, EachHostRunsItsShareWithTheVariablesAndTheSecretUnseen) {
  // The launcher is the parent of its task.
  const int launcher = start(
      {"--hosts", kHosts, "--workers", "4", "--env", "GREETING=it's \xff me", "--env", "HERE", "--", "sh",
       "-c",
       "echo $GREETING $HERE $RANK of $WORLD_SIZE in $(pwd); tr '\\0' ' ' < /proc/$PPID/cmdline | grep -c "
       "$MUSTER_SECRET; test -n \"$SSH_CONNECTION\" && echo by ssh"},
      {{"HERE", "and there"}});
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  for (int rank = 0; rank < 4; ++rank) {
    const std::string before = fmt::format("{} | worker/{} | ", rank < 2 ? "127.0.0.1" : "127.0.0.2", rank);
    EXPECT_THAT(result.output, AllOf(HasSubstr(fmt::format("{}it's \xff me and there {} of 4 in {}\n", before,
                                                           rank, std::filesystem::current_path().string())),
                                     HasSubstr(before + "0\n"), HasSubstr(before + "by ssh\n")));
  }
}

TEST_F(SshLauncherTest, TasksOfAllHostsMeet) {
  std::ofstream(folder / "hosts") << "127.0.0.1 slots=2\n127.0.0.2 slots=2\n";
  const int launcher = start({"--hostfile", folder / "hosts", "--", "hello_cluster"});
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, ContainsRegex("127.0.0.2 . worker/3 "));
}

TEST_F(SshLauncherTest, AFailureOnOneHostEndsAllWithItsCode) {
  const int other = start({"--hosts", kHosts, "--workers", "2", "--", "sh", "-c", "exit $((RANK * 255))"});
  const auto fails_as_ssh_does = cluster.wait(other, soon());
  EXPECT_EQ(fails_as_ssh_does.exit_code, 254) << fails_as_ssh_does.output;
  EXPECT_THAT(fails_as_ssh_does.output, Not(HasSubstr("can't be reached")));
  const int launcher = start({"--hosts", kHosts, "--workers", "2", "--", "sh", "-c",
                              "if [ $RANK = 1 ]; then echo fails; exit 7; fi; sleep " + mark});
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 7) << result.output;
  EXPECT_THAT(result.output,
              ContainsRegex("127.0.0.2 . muster +. the job failed: worker/1 exited with code 7"));
  EXPECT_TRUE(nothing_left());
}

TEST_F(SshLauncherTest, AHostThatCanNotBeReachedIsNamedAndTheOthersEnd) {
  const int launcher = start({"--hosts", "127.0.0.1,127.0.0.9", "--", "sleep", mark});
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 255) << result.output;
  EXPECT_THAT(result.output, HasSubstr("127.0.0.9 can't be reached, or its connection broke"));
  EXPECT_TRUE(nothing_left());
}

// As a login that runs another program than it is asked to, or one that waits for an answer.
TEST_F(SshLauncherTest, AnSshThatStartsNoLauncherIsAnError) {
  std::ofstream(folder / "hang") << "#!/bin/sh\nexec sleep " << mark << "\n";
  std::filesystem::permissions(folder / "hang", std::filesystem::perms::owner_all);
  const std::vector<std::string> rest = {"--hosts",        kHosts, "--workers", "2",
                                         "--join-timeout", "8s",   "--",        "true"};
  const auto with_ssh = [&](const std::string& ssh) {
    std::vector<std::string> command = {beside_self("muster"), "run", "--ssh", ssh};
    command.insert(command.end(), rest.begin(), rest.end());
    return run(command);
  };
  const auto nothing = with_ssh("true");
  EXPECT_EQ(nothing.exit_code, 1);
  EXPECT_THAT(nothing.output,
              ::testing::ContainsRegex("true exited with code 0 on 127.0.0.[12] without having started"))
      << "whichever is seen first";
  const auto hangs = with_ssh(folder / "hang");
  EXPECT_EQ(hangs.exit_code, 1);
  EXPECT_THAT(hangs.output, AllOf(HasSubstr("still waiting for the launcher on 127.0.0.1, 127.0.0.2"),
                                  HasSubstr("no launcher began on 127.0.0.1, 127.0.0.2 within 8.0 s")));
  EXPECT_TRUE(nothing_left());
}

TEST_F(SshLauncherTest, CtrlCEndsTheJobOnAllHosts) {
  const int launcher =
      start({"--hosts", kHosts, "--workers", "2", "--", "sh", "-c", "echo up; exec sleep " + mark});
  cluster.wait_for_output(launcher, "worker/0 | up", soon());
  cluster.wait_for_output(launcher, "worker/1 | up", soon());
  cluster.signal(launcher, SIGINT);
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("SIGINT: stopping the job on 2 hosts"), Not(HasSubstr("can't be reached"))));
  EXPECT_TRUE(nothing_left());
}

TEST_F(SshLauncherTest, AKilledLauncherLeavesNothingOnItsHosts) {
  const int launcher =
      start({"--hosts", kHosts, "--workers", "2", "--", "sh", "-c", "echo up; exec sleep " + mark});
  cluster.wait_for_output(launcher, "worker/0 | up", soon());
  cluster.wait_for_output(launcher, "worker/1 | up", soon());
  cluster.signal(launcher, SIGKILL);
  EXPECT_EQ(cluster.wait(launcher, soon()).signal, SIGKILL);
  EXPECT_TRUE(nothing_left());
}

TEST_F(SshLauncherTest, UserSignalsGoToTheTasksOfAllHosts) {
  const int launcher =
      start({"--hosts", kHosts, "--workers", "2", "--", "sh", "-c",
             "trap 'echo saved; exit 0' USR1; echo up; while :; do sleep 0.05; done; : " + mark});
  cluster.wait_for_output(launcher, "worker/0 | up", soon());
  cluster.wait_for_output(launcher, "worker/1 | up", soon());
  cluster.signal(launcher, SIGUSR1);
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("worker/0 | saved"), HasSubstr("worker/1 | saved")));
}

TEST_F(SshLauncherTest, ADryRunPrintsTheCommandOfEachHostWithoutTheSecret) {
  const int launcher = start({"--hosts", "h1,me@h2", "--strategy", "ps-sync", "--no-tune=false", "--dry-run",
                              "--env", "KEY=secret", "--", "program", "it's"},
                             {{"MUSTER_SECRET", "do-not-tell"}});
  const auto result = cluster.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(
      result.output,
      AllOf(ContainsRegex(
                " h1 'cd .* run --controlled --no-tune=false --strategy=ps-sync --workers=2 --coordinator=h1 "
                "--job-id=[0-9a-f]+ --nnodes 2 --node-rank 0 -- program"),
            ContainsRegex(" me@h2 'cd .*--node-rank 1 "), Not(HasSubstr("secret")),
            Not(HasSubstr("do-not-tell"))));
}

}  // namespace
}  // namespace muster::detail
