#include "muster/ps/table/table_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <list>
#include <random>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/ps/table/row_ids.h"
#include "muster/ps/table/table_service_test.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using namespace muster::detail::testing;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Stands between workers and a server, and cuts the connection where it is told to, once.
class Proxy {
 public:
  explicit Proxy(const Address& server) : server_(server), listener_(new_socket()) {
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    address_ = {"127.0.0.1", ntohs(address.sin_port)};
    thread_ = std::thread([this] { run(); });
  }

  ~Proxy() {
    stop_ = true;
    thread_.join();
    close(listener_);
  }

  ServerAddress address() const { return {address_, ""}; }

  // After so many more bytes in this direction.
  void cut_to_server(int64_t bytes) { left_[0] = bytes; }
  void cut_to_worker(int64_t bytes) { left_[1] = bytes; }
  int cuts() const { return cuts_; }

 private:
  struct Pair {
    std::array<int, 2> fds;  // of the worker, of the server
  };

  static int new_socket() { return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); }

  static sockaddr_in loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }

  void run() {
    std::list<Pair> pairs;
    while (!stop_) {
      std::vector<pollfd> waits = {{listener_, POLLIN, 0}};
      for (const Pair& pair : pairs)
        for (const int fd : pair.fds) waits.push_back({fd, POLLIN, 0});
      poll(waits.data(), waits.size(), 20);
      size_t at = 1;
      for (auto pair = pairs.begin(); pair != pairs.end(); at += 2) {
        const bool stays = (waits[at].revents == 0 || forward(*pair, 0)) &&
                           (waits[at + 1].revents == 0 || forward(*pair, 1));
        if (!stays) close_both(*pair);
        pair = stays ? std::next(pair) : pairs.erase(pair);
      }
      if (waits[0].revents != 0) accept_one(pairs);
    }
    for (const Pair& pair : pairs) close_both(pair);
  }

  void accept_one(std::list<Pair>& pairs) {
    const Pair pair = {{accept(listener_, nullptr, nullptr), new_socket()}};
    const sockaddr_in to = loopback(server_.port);
    EXPECT_EQ(connect(pair.fds[1], reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    pairs.push_back(pair);
  }

  static void close_both(const Pair& pair) {
    for (const int fd : pair.fds) close(fd);
  }

  // 0: to the server, 1: to the worker. False when the connection is to end.
  bool forward(const Pair& pair, size_t direction) {
    std::array<char, 4096> buffer{};
    const ssize_t received = recv(pair.fds[direction], buffer.data(), buffer.size(), 0);
    if (received <= 0) return false;
    const int64_t left = left_[direction];
    const bool cut = left >= 0 && received > left;
    const int64_t size = cut ? left : received;
    if (size > 0 && send(pair.fds[1 - direction], buffer.data(), static_cast<size_t>(size), MSG_NOSIGNAL) < 0)
      return false;
    if (left >= 0) left_[direction] = cut ? -1 : left - size;
    if (cut) ++cuts_;
    return !cut;
  }

  const Address server_;
  const int listener_;
  Address address_;
  std::array<std::atomic<int64_t>, 2> left_ = {-1, -1};
  std::atomic<int> cuts_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

class TableClients : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(TableServers, TableClients, ::testing::Values(1, 3));

TEST_P(TableClients, PullsAndPushesGoToTheRowsServers) {
  const TableServers servers(GetParam());
  TableClient client(servers.options());
  const TableOptions table = {.name = "items", .width = 5, .rule = row_rule(sgd({.lr = 1})), .seed = 3};
  client.create(table);
  client.create(table);  // the same again is fine

  Table alone(table);
  std::mt19937_64 generator(1);
  for (int round = 0; round < 20; ++round) {
    std::vector<int64_t> ids(300);
    for (int64_t& id : ids) id = static_cast<int64_t>(generator() % 1000) - 500;
    std::vector<float> gradients(ids.size() * table.width);
    for (float& gradient : gradients) gradient = static_cast<float>(generator() % 100);
    client.push("items", ids, gradients.data());
    alone.push(ids, gradients.data());
    std::vector<float> expected(gradients.size());
    alone.pull(ids, expected.data());
    ASSERT_EQ(pull(client, table, ids), expected);
  }
  EXPECT_EQ(client.size("items").rows, alone.size().rows);
  EXPECT_GT(client.size("items").bytes, 0u);
  client.push("items", {}, nullptr);
  client.pull("items", {}, nullptr);
}

TEST_P(TableClients, WorkersAtOnceLoseNothing) {
  const TableServers servers(GetParam());
  std::vector<std::thread> workers;
  for (int worker = 0; worker < 2; ++worker) {
    workers.emplace_back([&, worker] {
      TableClient client(servers.options(worker));
      client.create(sums());
      for (int i = 0; i < 200; ++i) {
        const std::vector<int64_t> ids = {0, 1, 2, 3, 4, 100 + worker, 1};
        client.push("sums", ids, std::vector<float>(14, 1.0f).data());
        pull(client, sums(), ids);
      }
    });
  }
  for (auto& worker : workers) worker.join();
  TableClient client(servers.options(2));
  client.create(sums());
  EXPECT_EQ(pull(client, sums(), {0, 1, 100}), (std::vector<float>{-400, -400, -800, -800, -200, -200}));
  EXPECT_EQ(client.size("sums").rows, 7u);
}

TEST(TableClient, APushWhoseAnswerWasLostIsAppliedOnce) {
  TableServers servers(1);
  Proxy proxy(servers.addresses[0].address);
  servers.addresses[0] = proxy.address();
  TableClient client(servers.options());
  client.create(sums());
  for (int i = 0; i < 10; ++i) {
    proxy.cut_to_worker(i);  // the server has applied it, but no or half an answer comes
    client.push("sums", std::vector<int64_t>{7}, std::vector<float>{1, 2}.data());
  }
  EXPECT_EQ(proxy.cuts(), 10);
  EXPECT_EQ(pull(client, sums(), {7}), (std::vector<float>{-10, -20}));
}

TEST(TableClient, ARequestThatCameHalfIsAppliedOnce) {
  TableServers servers(1);
  Proxy proxy(servers.addresses[0].address);
  servers.addresses[0] = proxy.address();
  TableClient client(servers.options());
  client.create(sums());
  for (const int64_t bytes : {0, 1, 55, 56, 57, 64, 67}) {
    proxy.cut_to_server(bytes);
    client.push("sums", std::vector<int64_t>{7}, std::vector<float>{1, 2}.data());
    proxy.cut_to_server(bytes);
    pull(client, sums(), {7});
  }
  EXPECT_EQ(proxy.cuts(), 14);
  EXPECT_EQ(pull(client, sums(), {7}), (std::vector<float>{-7, -14}));
}

// Two workers, three servers, and connections that break anywhere: handshakes, heads, rows, answers.
TEST(TableClient, EveryPushCountsOnceWhereverConnectionsBreak) {
  constexpr int kPushes = 60;
  const TableServers servers(3);
  std::vector<std::thread> workers;
  for (int worker = 0; worker < 2; ++worker) {
    workers.emplace_back([&, worker] {
      std::list<Proxy> proxies;
      auto options = servers.options(worker);
      for (auto& address : options.servers) address = proxies.emplace_back(address.address).address();
      TableClient client(options);
      client.create(sums());
      std::mt19937_64 generator(static_cast<uint64_t>(worker));
      std::vector<int64_t> ids(30);
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
      for (int i = 0; i < kPushes; ++i) {
        for (Proxy& proxy : proxies) {
          if (generator() % 3 == 0) proxy.cut_to_server(static_cast<int64_t>(generator() % 300));
          if (generator() % 3 == 0) proxy.cut_to_worker(static_cast<int64_t>(generator() % 100));
        }
        client.push("sums", ids, std::vector<float>(60, 1.0f).data());
      }
      int cuts = 0;
      for (const Proxy& proxy : proxies) cuts += proxy.cuts();
      EXPECT_GT(cuts, kPushes / 3);
    });
  }
  for (auto& worker : workers) worker.join();
  TableClient client(servers.options(2));
  client.create(sums());
  for (int64_t id = 0; id < 30; ++id)
    EXPECT_EQ(pull(client, sums(), {id}), (std::vector<float>{-2 * kPushes, -2 * kPushes})) << id;
}

TEST(TableClient, AServerThatIsGoneIsNamed) {
  TableServers servers(2);
  auto options = servers.options();
  options.server_wait = 300ms;
  TableClient client(options);
  client.create(sums());
  const std::vector<int64_t> ids = {0, 1, 2, 3, 4, 5, 6, 7};
  pull(client, sums(), ids);
  servers.services[1].reset();
  servers.endpoints[1].reset();
  EXPECT_THAT(message_of<PeerLost>([&] { pull(client, sums(), ids); }),
              AllOf(HasSubstr("server 1"), HasSubstr(servers.addresses[1].address.to_string())));
  // The other one still answers.
  for (const int64_t id : ids) {
    if (server_of(id, 2) == 0) {
      EXPECT_EQ(pull(client, sums(), {id}), (std::vector<float>{0, 0}));
    }
  }
}

TEST(TableClient, AServerThatComesBackInTimeIsFound) {
  TableServers servers(1);
  const int port = servers.addresses[0].address.port;
  servers.addresses[0].local_name.clear();
  auto options = servers.options();
  bool is_gone = false;
  int waits = 0;  // for a server that is gone
  options.check = [&] {
    if (!is_gone || ++waits < 3) return;
    is_gone = false;
    servers.endpoints[0] = std::make_shared<Endpoint>(Endpoint::Options{.port = port, .secret = "s"});
    servers.services[0] = std::make_unique<TableService>(servers.endpoints[0], "job");
  };
  TableClient client(options);
  client.create(sums());
  servers.services[0].reset();
  servers.endpoints[0].reset();
  is_gone = true;
  EXPECT_THAT(message_of<Refused>([&] { pull(client, sums(), {1}); }), HasSubstr("no table 'sums'"))
      << "it is without what it held, and says so";
}

TEST(TableClient, AWaitCanBeAborted) {
  TableServers servers(1);
  auto options = servers.options();
  servers.services[0].reset();  // its endpoint takes connections, but nobody answers
  std::atomic<int> calls = 0;
  options.check = [&] {
    if (++calls > 3) throw Aborted("enough");
  };
  TableClient client(options);
  EXPECT_THROW(client.create(sums()), Aborted);
}

TEST(TableClient, AServerThatDoesNotAnswerIsADeadline) {
  TableServers servers(1);
  servers.services[0].reset();
  auto options = servers.options();
  options.timeout = 200ms;
  TableClient client(options);
  EXPECT_THAT(message_of<DeadlineExceeded>([&] { client.create(sums()); }), HasSubstr("server 0"));
}

}  // namespace
}  // namespace muster::detail
