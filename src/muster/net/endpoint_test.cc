#include "muster/net/endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/base/log.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

Deadline soon() {
  return Deadline::after(30s);
}

// The lines logged while it lives.
class Logged {
 public:
  Logged() {
    set_log_sink([this](std::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_ += line;
    });
  }
  ~Logged() { set_log_sink(nullptr); }
  std::string wait_for(const std::string& text) {
    for (const auto deadline = soon(); !deadline.expired(); std::this_thread::sleep_for(10ms)) {
      const std::lock_guard lock(mutex_);
      if (lines_.find(text) != std::string::npos) return lines_;
    }
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::string lines_;
};

int raw_connection(const Address& address) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(address.port));
  inet_pton(AF_INET, address.host.c_str(), &to.sin_addr);
  EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return fd;
}

// Both ends can carry bytes to each other.
void talk(Connection& a, Connection& b) {
  std::string text(5, '\0');
  a.send("hello", 5, soon());
  b.receive(text.data(), 5, soon());
  EXPECT_EQ(text, "hello");
  b.send("HELLO", 5, soon());
  a.receive(text.data(), 5, soon());
  EXPECT_EQ(text, "HELLO");
}

TEST(Endpoint, PeersThatKnowTheSecretAreConnectedByChannelName) {
  Endpoint one({.secret = "s"});
  Endpoint two({.secret = "s"});
  Connection b = two.connect(one.address(), "b", soon());
  Connection a = two.connect_local(one.local_name(), "a", soon());
  Connection a_there = one.accept("a", soon());
  Connection b_there = one.accept("b", soon());
  talk(a, a_there);
  talk(b, b_there);
}

TEST(Endpoint, APeerOnThisHostIsKnownAsSuch) {
  Endpoint endpoint({.secret = "s"});
  const Connection by_tcp = endpoint.connect(endpoint.address(), "t", soon());
  const Connection by_name = endpoint.connect_local(endpoint.local_name(), "l", soon());
  EXPECT_TRUE(by_tcp.is_on_this_host());
  EXPECT_TRUE(endpoint.accept("t", soon()).is_on_this_host());
  EXPECT_TRUE(by_name.is_on_this_host());
  EXPECT_FALSE(Connection().is_on_this_host());
}

TEST(Endpoint, DescriptorsPassInsideAHost) {
  Endpoint one({.secret = "s"});
  Endpoint two({.secret = "s"});
  Connection a = two.connect_local(one.local_name(), "a", soon());
  Connection b = one.accept("a", soon());
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  a.send_descriptor(pipes[1], soon());
  const int copy = b.receive_descriptor(soon());
  ASSERT_EQ(write(copy, "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(read(pipes[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
  for (const int fd : {copy, pipes[0], pipes[1]}) close(fd);
}

TEST(Endpoint, AWrongSecretIsRefusedOnBothSides) {
  Logged logged;
  Endpoint one({.secret = "right"});
  Endpoint two({.secret = "wrong"});
  EXPECT_THROW(two.connect(one.address(), "a", soon()), Refused);
  EXPECT_THROW(two.connect_local(one.local_name(), "a", soon()), Refused);
  EXPECT_THAT(logged.wait_for("does not know the job's secret"), HasSubstr("does not know the job's secret"));
  EXPECT_THROW(one.accept("a", Deadline::after(50ms)), DeadlineExceeded);
}

TEST(Endpoint, GarbageIsDroppedAndLoggedAndDisturbsNobody) {
  Logged logged;
  Endpoint one({.secret = "s"});
  Endpoint two({.secret = "s"});
  const int garbage = raw_connection(one.address());
  const int silent = raw_connection(one.address());
  const int scan = raw_connection(one.address());
  close(scan);
  ASSERT_EQ(send(garbage, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
  EXPECT_THAT(logged.wait_for("does not speak our protocol"), HasSubstr("does not speak our protocol"));
  char byte = 0;
  EXPECT_LE(recv(garbage, &byte, 1, 0), 0) << "it was dropped";
  Connection a = two.connect(one.address(), "a", soon());
  Connection b = one.accept("a", soon());
  talk(a, b);
  EXPECT_THAT(logged.wait_for("did not introduce itself"), HasSubstr("did not introduce itself"));
  std::string greeting = "muster.1" + std::string(32, 'n');
  greeting += std::string("\1\0a", 3);
  ASSERT_GT(send(silent, greeting.data(), greeting.size(), MSG_NOSIGNAL), 0);
  EXPECT_EQ(recv(silent, greeting.data(), 32, MSG_WAITALL), 32) << "whoever was only slow is still heard";
  close(garbage);
  close(silent);
}

TEST(Endpoint, StrangersCannotFillTheLog) {
  Logged logged;
  Endpoint one({.secret = "s"});
  for (int i = 0; i < 200; ++i) {
    const Descriptor stranger(raw_connection(one.address()));
    ASSERT_EQ(send(stranger.get(), "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
    char byte = 0;
    EXPECT_LE(recv(stranger.get(), &byte, 1, 0), 0) << "it was dropped";
  }
  const std::string lines = logged.wait_for("does not speak our protocol");
  EXPECT_LT(std::count(lines.begin(), lines.end(), '\n'), 100);
}

TEST(Endpoint, ANameIsAsGoodAsAnAddress) {
  Endpoint one({.host = "127.0.0.1", .secret = "s"});
  Endpoint two({.host = "localhost", .secret = "s"});
  Connection a = two.connect({"localhost", one.address().port}, "a", soon());
  Connection b = one.accept("a", soon());
  talk(a, b);
}

size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

TEST(Endpoint, WhatFailsLeavesNoDescriptorBehind) {
  Logged logged;
  Endpoint one({.secret = "right"});
  Endpoint two({.secret = "wrong"});
  EXPECT_THROW(two.connect(one.address(), "a", soon()), Refused);
  const size_t before = open_descriptors();
  for (int i = 0; i < 10; ++i) {
    EXPECT_THROW(two.connect(one.address(), "a", soon()), Refused);
    EXPECT_THROW(two.connect_local(one.local_name(), "a", soon()), Refused);
    EXPECT_THROW(two.connect_local("nobody listens here", "a", soon()), PeerLost);
    EXPECT_THROW(Endpoint({.port = one.address().port, .secret = "s"}), SystemError);
    EXPECT_THROW(Endpoint({.secret = "s", .tls = {"/no/cert", "/no/key", "/no/ca"}}), Error);
  }
  for (const auto deadline = soon(); open_descriptors() > before && !deadline.expired();)
    std::this_thread::sleep_for(1ms);  // the accepting side may take a moment
  EXPECT_LE(open_descriptors(), before);
}

// Heartbeats and deadlines decide that a peer is gone: the kernel would also break the connection to one that
// does not read for a while.
TEST(Endpoint, TheKernelSetsNoLimitToWhatAPeerDoesNotRead) {
  Endpoint one({.secret = "s"});
  Endpoint two({.secret = "s"});
  const Connection a = two.connect(one.address(), "a", soon());
  const Connection b = one.accept("a", soon());
  for (const Connection* connection : {&a, &b}) {
    int timeout = -1;
    socklen_t size = sizeof(timeout);
    ASSERT_EQ(getsockopt(connection->fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, &size), 0);
    EXPECT_EQ(timeout, 0);
  }
}

TEST(Endpoint, AReplayedGreetingIsNotEnough) {
  Logged logged;
  Endpoint one({.secret = "s"});
  const int fd = raw_connection(one.address());
  std::string greeting = "muster.1" + std::string(32, 'n');
  greeting += std::string("\1\0a", 3);
  greeting += std::string(32, 'p');  // a proof of nothing
  ASSERT_GT(send(fd, greeting.data(), greeting.size(), MSG_NOSIGNAL), 0);
  EXPECT_THAT(logged.wait_for("does not know the job's secret"), HasSubstr("does not know the job's secret"));
  close(fd);
}

TEST(Endpoint, NobodyThereIsAnError) {
  Address gone;
  {
    Endpoint one({.secret = "s"});
    gone = one.address();
  }
  Endpoint two({.secret = "s"});
  EXPECT_THROW(two.connect(gone, "a", soon()), PeerLost);
  EXPECT_THROW(two.connect_local("muster-nobody", "a", soon()), PeerLost);
}

TEST(Endpoint, AConnectionWhosePeerIsGoneThrowsPeerLost) {
  Endpoint one({.secret = "s"});
  Endpoint two({.secret = "s"});
  Connection a = two.connect(one.address(), "a", soon());
  { const Connection b = one.accept("a", soon()); }
  char byte = 0;
  EXPECT_THROW(a.receive(&byte, 1, soon()), PeerLost);
}

class TlsTest : public ::testing::Test {
 protected:
  TlsTest() {
    std::string name = (std::filesystem::temp_directory_path() / "muster-tls-XXXXXX").string();
    folder = mkdtemp(name.data());
    authority("ca");
    authority("other");
    certificate("task", "ca");
    certificate("stranger", "other");
  }
  ~TlsTest() override { std::filesystem::remove_all(folder); }

  void shell(const std::string& command) {
    ASSERT_EQ(std::system((command + " >/dev/null 2>&1").c_str()), 0) << command;
  }
  void authority(const std::string& name) {
    shell(
        fmt::format("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
                    "-subj /CN={1} -keyout {0}/{1}.key -out {0}/{1}.pem",
                    folder, name));
  }
  void certificate(const std::string& name, const std::string& by) {
    shell(
        fmt::format("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={1} "
                    "-keyout {0}/{1}.key -out {0}/{1}.csr && "
                    "openssl x509 -req -in {0}/{1}.csr -CA {0}/{2}.pem -CAkey {0}/{2}.key -CAcreateserial "
                    "-days 2 -out {0}/{1}.pem",
                    folder, name, by));
  }
  TlsFiles files(const std::string& name) const {
    return {folder + "/" + name + ".pem", folder + "/" + name + ".key", folder + "/ca.pem"};
  }

  std::string folder;
};

TEST_F(TlsTest, PeersWithCertificatesOfTheAuthorityTalk) {
  Endpoint one({.secret = "s", .tls = files("task")});
  Endpoint two({.secret = "s", .tls = files("task")});
  Connection a = two.connect(one.address(), "a", soon());
  Connection b = one.accept("a", soon());
  talk(a, b);
}

TEST_F(TlsTest, ACertificateOfAnotherAuthorityIsRefused) {
  Logged logged;
  Endpoint one({.secret = "s", .tls = files("task")});
  Endpoint two({.secret = "s", .tls = files("stranger")});
  EXPECT_THROW(two.connect(one.address(), "a", soon()), Refused);
  EXPECT_THAT(logged.wait_for("dropped"), HasSubstr("dropped"));
}

TEST_F(TlsTest, AnUnencryptedPeerIsRefused) {
  Logged logged;
  Endpoint one({.secret = "s", .tls = files("task")});
  Endpoint two({.secret = "s"});
  EXPECT_THROW(two.connect(one.address(), "a", Deadline::after(10s)), Error);
}

TEST_F(TlsTest, FilesThatDoNotWorkAreNamed) {
  const auto message = [](const TlsFiles& files) -> std::string {
    try {
      const TlsContext context(files);
      return "";
    } catch (const InvalidArgument& error) {
      return error.what();
    }
  };
  auto incomplete = files("task");
  incomplete.key = "";
  EXPECT_THAT(message(incomplete), HasSubstr("--tls-key is not given"));
  auto missing = files("task");
  missing.certificate = folder + "/none.pem";
  EXPECT_THAT(message(missing), HasSubstr("none.pem: No such file or directory"));
  auto other = files("task");
  other.key = folder + "/stranger.key";
  EXPECT_THAT(message(other), HasSubstr("stranger.key: key values mismatch"));
}

}  // namespace
}  // namespace muster::detail
