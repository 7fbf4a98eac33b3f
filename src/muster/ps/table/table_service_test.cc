#include "muster/ps/table/table_service_test.h"

#include <sys/socket.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/base/log.h"

namespace muster::detail {
namespace {

using namespace muster::detail::testing;
using ::testing::HasSubstr;

TEST(TableService, AnIncarnationThatIsOverCantPush) {
  const TableServers servers(1);
  auto options = servers.options(4);
  options.incarnation = 1;
  TableClient older(options);
  older.create(sums());
  const std::vector<int64_t> ids = {1};
  const std::vector<float> ones = {1, 1};
  for (int i = 0; i < 5; ++i) older.push("sums", ids, ones.data());
  options.incarnation = 2;
  TableClient newer(options);
  newer.create(sums());
  newer.push("sums", ids, ones.data());  // its count begins anew
  EXPECT_THAT(message_of<Refused>([&] { older.push("sums", ids, ones.data()); }),
              HasSubstr("incarnation 1 of worker/4 is over"));
  TableClient second(options);
  second.create(sums());
  EXPECT_THAT(message_of<Refused>([&] { second.push("sums", ids, ones.data()); }),
              HasSubstr("worker/4 has two clients in incarnation 2"));
  EXPECT_EQ(pull(older, sums(), {1}), (std::vector<float>{-6, -6}));
}

TEST(TableService, WhatMakesNoSenseIsRefusedWithAReason) {
  const TableServers servers(3);
  TableClient client(servers.options());
  client.create(sums());
  auto other = sums();
  other.rule = row_rule(adagrad());
  EXPECT_THAT(message_of<Refused>([&] { client.create(other); }), HasSubstr("'sums' is there already"));
  EXPECT_THAT(message_of<Refused>([&] { client.create(sums(3)); }), HasSubstr("'sums' is there already"));
  std::vector<float> rows(10);
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { client.pull("users", std::vector<int64_t>{1}, rows.data()); }),
      HasSubstr("'users'"));
  EXPECT_EQ(pull(client, sums(), {1, 2, 3}), std::vector<float>(6)) << "and it goes on";
  EXPECT_THROW(TableClient({.endpoint = servers.worker_endpoint}), InvalidArgument);
}

// Bytes of our own making, past the client.
struct Raw {
  explicit Raw(const TableServers& servers)
      : connection(servers.worker_endpoint->connect(servers.addresses[0].address, "tables/job/9", soon())) {}

  void send(const std::string& bytes) { connection.send(bytes.data(), bytes.size(), soon()); }

  std::string refusal() {
    AnswerHead head;
    connection.receive(&head, sizeof(head), soon());
    std::string text(head.bytes, '\0');
    connection.receive(text.data(), text.size(), soon());
    return head.refused != 0 ? text : "(not refused)";
  }

  bool closed() {
    char byte = 0;
    return message_of<PeerLost>([&] { connection.receive(&byte, 1, soon()); }) != "(nothing was thrown)";
  }

  Connection connection;
};

std::string request(RequestHead head, const std::string& body = "", const std::string& name = "sums") {
  head.name_length = static_cast<uint16_t>(name.size());
  return std::string(reinterpret_cast<const char*>(&head), sizeof(head)) + body + name;
}

TEST(TableService, RawRequestsAreChecked) {
  const TableServers servers(1);
  TableClient client(servers.options());
  client.create(sums());
  using enum TableRequest;
  Raw raw(servers);
  raw.send(request({.kind = kPull, .width = 3, .count = 1}, std::string(8, '\0')));
  EXPECT_THAT(raw.refusal(), HasSubstr("have 2 floats, not 3"));
  raw.send(request({.kind = kPull, .width = 2, .count = 1}, std::string(8, '\0'), "users"));
  EXPECT_THAT(raw.refusal(), HasSubstr("no table 'users'"));
  raw.send(request({.kind = kCreate, .width = 0}, "", "zero"));
  EXPECT_THAT(raw.refusal(), HasSubstr("not an update rule"));
  raw.send(request({.kind = kPull, .width = 2, .count = 1}, std::string(8, '\0')));
  EXPECT_EQ(raw.refusal(), "(not refused)") << "the connection is still good";

  const std::vector<std::pair<std::string, std::string>> ends = {
      {"GET / HTTP/1.1\r\nHost: a.very.long.name.of.a.host.example\r\n\r\n", "no request"},
      {request({.kind = kPull, .width = 2, .count = 0xffffffff}), "too many"},
      {request({.kind = kPush, .width = 60000, .count = 60000, .sequence = 1}), "too many"},
      {request({.kind = kPush, .width = 2, .count = 1}), "without a number"},
      {request({.kind = kPull, .width = 0xffffffff, .count = 1}), "rows of 4294967295 floats"},
      {request({.kind = kSize, .count = 7}), "7 ids"},
      {request({.kind = kSize, .text_length = 1}), "rule's text"},
      {request({.kind = kCreate, .text_length = 1 << 30, .width = 2}), "rule's text"},
      {request({.kind = kSize}, "", std::string(300, 'n')), "name of 300 bytes"},
      {request({.kind = static_cast<TableRequest>(77)}), "kind 77"},
  };
  for (const auto& [bytes, reason] : ends) {
    Raw bad(servers);
    bad.send(bytes.substr(0, sizeof(RequestHead)));
    EXPECT_THAT(bad.refusal(), HasSubstr(reason));
    EXPECT_TRUE(bad.closed());
  }
}

// Random bytes, and requests with a few bytes changed. Whatever they do, the service stays up, and a table
// that they can't name keeps what it holds.
TEST(TableService, StaysUpUnderRandomBytes) {
  set_log_sink([](std::string_view) {});
  const TableServers servers(1);
  TableClient client(servers.options());
  TableOptions safe = sums();
  safe.name = "a name that no few changed bytes will give";
  client.create(safe);
  client.create(sums());
  client.push(safe.name, std::vector<int64_t>{1}, std::vector<float>{3, 4}.data());

  using enum TableRequest;
  const std::string rule = "sgd lr=1";
  RequestHead create = {.kind = kCreate, .text_length = static_cast<uint32_t>(rule.size()), .width = 2};
  const std::vector<std::string> valid = {
      request(create) + rule,
      request({.kind = kPull, .width = 2, .count = 3}, std::string(24, '\1')),
      request({.kind = kPush, .width = 2, .count = 2, .worker = 9, .sequence = 1}, std::string(32, '\1')),
      request({.kind = kSize}),
      request({}),
  };
  std::mt19937_64 generator(5);
  for (int i = 0; i < 600; ++i) {
    std::string bytes;
    if (i % 4 == 0) {
      bytes.resize(generator() % 400);
      for (char& byte : bytes) byte = static_cast<char>(generator());
    } else {
      for (int part = 0; part < 3; ++part) bytes += valid[generator() % valid.size()];
      for (uint64_t change = generator() % 4; change > 0; --change)
        bytes[generator() % bytes.size()] = static_cast<char>(generator());
    }
    Raw raw(servers);
    try {
      raw.send(bytes);
      shutdown(raw.connection.fd(), SHUT_WR);
      if (i % 2 == 0) raw.refusal();  // whatever it is; nothing after a close, or half a request
    } catch (const Error&) {
    }
  }
  EXPECT_EQ(pull(client, safe, {1}), (std::vector<float>{-3, -4}));
  EXPECT_EQ(client.size(safe.name).rows, 1u);
  set_log_sink(nullptr);
}

}  // namespace
}  // namespace muster::detail
