#include "muster/base/symbols.h"

#include <dlfcn.h>

#include <filesystem>
#include <memory>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::detail {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

void static_function(const std::string& /*unused*/) {}

std::string name_of_this_program() {
  return std::filesystem::read_symlink("/proc/self/exe").filename();
}

TEST(Symbols, StaticFunctionsHaveNamesAndPlacesInTheProgram) {
  Symbols symbols;
  const auto text = symbols.describe(reinterpret_cast<const void*>(&static_function));
  EXPECT_THAT(
      text,
      MatchesRegex(R"(muster::detail::.*static_function\(std::string const&\)\+0x0 \(.*\+0x[0-9a-f]+\))"));
  EXPECT_THAT(text, HasSubstr("(" + name_of_this_program() + "+0x"));
}

TEST(Symbols, FunctionsOfLibrariesHaveNames) {
  // Not the address of a function of libc's, which a sanitizer may have replaced by one of its own.
  const auto* function = static_cast<const char*>(dlsym(dlopen("libm.so.6", RTLD_LAZY), "nexttowardl"));
  Symbols symbols;
  ASSERT_NE(function, nullptr);
  EXPECT_THAT(symbols.describe(function + 1), MatchesRegex(R"(nex[a-z]+l\+0x1 \(libm.*\+0x[0-9a-f]+\))"));
}

TEST(Symbols, WhatIsNoCodeIsShownAsANumber) {
  Symbols symbols;
  const auto memory = std::make_unique<int>(0);
  EXPECT_EQ(symbols.describe(memory.get()), fmt::format("{}, which is in no file", fmt::ptr(memory.get())));
}

}  // namespace
}  // namespace muster::detail
