#include "muster/host_list.h"

#include <unistd.h>

#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"

namespace muster::detail {
namespace {

using ::testing::HasSubstr;

class Hostfile : public ::testing::Test {
 protected:
  ~Hostfile() override { std::filesystem::remove(path); }
  std::vector<HostEntry> read(const std::string& text) const {
    std::ofstream(path) << text;
    return read_hostfile(path);
  }
  std::string problem(const std::string& text) const {
    try {
      read(text);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "none";
  }
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / fmt::format("muster-hostfile-{}", getpid());
};

TEST(HostList, HostsAreSeparatedByCommasAndMayHaveAUser) {
  const auto hosts = parse_hosts("h1,me@h2");
  ASSERT_EQ(hosts.size(), 2U);
  EXPECT_EQ(hosts[0].address(), "h1");
  EXPECT_EQ(hosts[1].name, "me@h2");
  EXPECT_EQ(hosts[1].address(), "h2");
  EXPECT_EQ(default_workers(hosts), 2);
}

TEST(HostList, WhatIsNoHostIsRefused) {
  for (const char* text : {"", "h1,,h2", "h1,", "-oProxyCommand=evil", "h1 h2", "h;reboot", "me@"})
    EXPECT_THROW(parse_hosts(text), InvalidArgument) << text;
}

TEST_F(Hostfile, TakesTheFormsOfOpenMpiAndMpich) {
  const auto hosts =
      read("# our machines\nh1 slots=4\n\nme@h2 slots=4  # the second\nh3:4\nfe80::1 slots=4\n");
  ASSERT_EQ(hosts.size(), 4U);
  EXPECT_EQ(hosts[1].name, "me@h2");
  EXPECT_EQ(hosts[2].name, "h3");
  EXPECT_EQ(hosts[2].slots, 4);
  EXPECT_EQ(hosts[3].name, "fe80::1");
  EXPECT_EQ(default_workers(hosts), 16);
}

TEST_F(Hostfile, SaysWhichLineIsWrong) {
  EXPECT_THAT(problem("h1\nh2 slot=4\n"), HasSubstr("line 2: 'h2 slot=4' is not like h1"));
  EXPECT_THAT(problem("h1 slots=0\n"), HasSubstr("line 1"));
  EXPECT_THAT(problem("h1:x\n"), HasSubstr("line 1"));
  EXPECT_THAT(problem("# nobody\n"), HasSubstr("names no host"));
  EXPECT_THROW(read_hostfile("/nonexistent"), InvalidArgument);
}

TEST_F(Hostfile, DifferentSlotsNeedANumberOfWorkers) {
  EXPECT_THROW(default_workers(read("h1 slots=2\nh2 slots=4\n")), InvalidArgument);
}

}  // namespace
}  // namespace muster::detail
