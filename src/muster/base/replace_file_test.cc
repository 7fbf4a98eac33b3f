#include "muster/base/replace_file.h"

#include <filesystem>
#include <fstream>
#include <ostream>
#include <sstream>

#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/base/random.h"

namespace muster::detail {
namespace {

class ReplaceFileTest : public ::testing::Test {
 protected:
  ReplaceFileTest() { std::filesystem::create_directory(folder); }
  ~ReplaceFileTest() override { std::filesystem::remove_all(folder); }

  std::string text() const {
    std::ifstream stream(file);
    std::ostringstream all;
    all << stream.rdbuf();
    return all.str();
  }

  const std::string folder = ::testing::TempDir() + "replace_file_" + random_token();
  const std::string file = folder + "/file";
};

TEST_F(ReplaceFileTest, WhatWasThereIsReplacedWhole) {
  replace_file(file, [](std::ostream& out) { out << "a longer first text"; });
  replace_file(file, [this](std::ostream& out) {
    out << "second" << std::flush;
    EXPECT_EQ(text(), "a longer first text") << "until all is written";
  });
  EXPECT_EQ(text(), "second");
}

TEST_F(ReplaceFileTest, AFailureLeavesWhatWasThere) {
  replace_file(file, [](std::ostream& out) { out << "first"; });
  EXPECT_THROW(replace_file(file, [](std::ostream& out) { out.setstate(std::ios::failbit); }), SystemError);
  EXPECT_EQ(text(), "first");
  EXPECT_FALSE(std::filesystem::exists(file + ".new"));
  EXPECT_THROW(replace_file(folder, [](std::ostream&) {}), SystemError) << "a folder";
  EXPECT_THROW(replace_file(folder + "/nowhere/file", [](std::ostream&) {}), SystemError);
}

}  // namespace
}  // namespace muster::detail
