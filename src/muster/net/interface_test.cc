#include "muster/net/interface.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

const std::vector<Interface> kInterfaces = {
    {"lo", "127.0.0.1"}, {"docker0", "172.17.0.1"}, {"eth0", "10.0.0.7"}, {"ib0", "10.1.0.7"}};

TEST(ChooseInterface, TakesNamesAndPrefixesInOrderOfPreference) {
  EXPECT_EQ(choose_interface(kInterfaces, "eth0").address, "10.0.0.7");
  EXPECT_EQ(choose_interface(kInterfaces, "ib,eth").name, "ib0");
  EXPECT_EQ(choose_interface(kInterfaces, "wlan,eth").name, "eth0");
}

TEST(ChooseInterface, ExcludesWithACaret) {
  EXPECT_EQ(choose_interface(kInterfaces, "^lo,docker").name, "eth0");
  EXPECT_EQ(choose_interface(kInterfaces, "^lo,docker,eth").name, "ib0");
}

TEST(ChooseInterface, WhenNoneFitsItListsWhatThereIs) {
  try {
    choose_interface(kInterfaces, "wlan");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("'wlan'; there are: lo (127.0.0.1), docker0"));
  }
  EXPECT_THROW(choose_interface(kInterfaces, "^lo,docker,eth,ib"), InvalidArgument);
  EXPECT_THROW(choose_interface(kInterfaces, ""), InvalidArgument);
  EXPECT_THROW(choose_interface(kInterfaces, "eth,,ib"), InvalidArgument);
}

TEST(ListInterfaces, HasTheLoopback) {
  EXPECT_EQ(choose_interface(list_interfaces(), "lo").address, "127.0.0.1");
}

TEST(AddressTowards, IsTheLoopbackForTheLoopback) {
  EXPECT_EQ(address_towards({"127.0.0.1", 80}), "127.0.0.1");
}

TEST(AddressTowards, AnUnknownHostIsNamed) {
  try {
    address_towards({"no-such-host.invalid", 80});
    FAIL();
  } catch (const SystemError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("no-such-host.invalid"));
  }
}

}  // namespace
}  // namespace muster::detail
