#include "muster/net/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

TEST(Address, ParsesAndPrints) {
  for (const char* text : {"h1:2222", "10.0.0.1:1", "[::1]:65535", "gpu-01.cluster.example:80"}) {
    EXPECT_EQ(Address::parse(text).to_string(), text);
  }
  EXPECT_EQ(Address::parse("[fe80::1]:80").host, "fe80::1");
}

TEST(Address, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"h1", "no port"},        {":2222", "no host"},        {"h1:", "port ''"},
      {"h1:0", "port '0'"},     {"h1:65536", "'65536'"},     {"h1:http", "port 'http'"},
      {"::1:2222", "brackets"}, {"[::1]", "[IPv6]:port"},    {"[zz]:1", "not an IPv6 address"},
      {"", "no port"},          {"a b:1", "not a host name"}};
  for (const auto& [text, expected] : cases) {
    try {
      Address::parse(text);
      ADD_FAILURE() << text;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(expected)) << text;
    }
  }
}

TEST(Address, LoopbackIsRecognised) {
  for (const char* host : {"localhost", "127.0.0.1", "127.1.2.3", "::1"})
    EXPECT_TRUE(is_loopback(host)) << host;
  for (const char* host : {"10.0.0.1", "h1", "128.0.0.1", "127.example", ""})
    EXPECT_FALSE(is_loopback(host)) << host;
}

}  // namespace
}  // namespace muster::detail
