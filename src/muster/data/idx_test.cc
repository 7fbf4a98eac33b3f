#include "muster/idx.h"

#include <unistd.h>
#include <zlib.h>

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class IdxTest : public ::testing::Test {
 protected:
  IdxTest() : folder(std::filesystem::temp_directory_path() / ("idx_test." + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder);
  }
  ~IdxTest() override { std::filesystem::remove_all(folder); }

  std::filesystem::path write(const std::string& bytes) {
    const auto path = folder / "file";
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  std::filesystem::path write_gzip(const std::string& bytes) {
    const auto path = folder / "file.gz";
    gzFile file = gzopen(path.c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
    return path;
  }

  static std::string message_of(const std::filesystem::path& path) {
    try {
      read_idx(path);
    } catch (const DataLoss& error) {
      return error.what();
    }
    return "accepted";
  }

  std::filesystem::path folder;
};

const std::string kGood = std::string("\0\0\x08\x02\0\0\0\x02\0\0\0\x03", 12) + "abcdef";

TEST_F(IdxTest, ReadsPlainAndGzip) {
  for (const auto& path : {write(kGood), write_gzip(kGood)}) {
    const auto array = read_idx(path);
    EXPECT_THAT(array.shape, ElementsAre(2, 3));
    EXPECT_THAT(array.values, ElementsAre('a', 'b', 'c', 'd', 'e', 'f'));
  }
}

TEST_F(IdxTest, EveryTruncationIsNamed) {
  for (size_t size = 0; size < kGood.size(); ++size) {
    const auto path = write(kGood.substr(0, size));
    EXPECT_THAT(message_of(path), AllOf(HasSubstr(path.string()), HasSubstr("truncated"))) << size;
  }
  EXPECT_THAT(message_of(write(kGood.substr(0, 15))), HasSubstr("after 3 of 6 bytes of its values"));
}

TEST_F(IdxTest, ATruncatedOrCorruptGzipStreamIsNamed) {
  const auto path = write_gzip(kGood);
  std::ifstream file(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), {});
  for (size_t size = 3; size < whole.size(); ++size) {
    EXPECT_THAT(message_of(write(whole.substr(0, size))), HasSubstr(folder.string())) << size;
  }
  std::string corrupt = whole;
  corrupt[corrupt.size() - 6] ^= 0x55;  // the checksum
  EXPECT_THAT(message_of(write(corrupt)), HasSubstr("corrupt gzip file"));
}

TEST_F(IdxTest, WhatIsNotIdxIsNamed) {
  EXPECT_THAT(message_of(write("<html>not found</html>")),
              HasSubstr("not an IDX file: it begins with the bytes 3c 68"));
  EXPECT_THAT(message_of(write(std::string("\0\0\x0d\x01\0\0\0\0", 8))), HasSubstr("type 0x0d"));
  EXPECT_THAT(message_of(write(std::string("\0\0\x08\0", 4))), HasSubstr("0 dimensions"));
  EXPECT_THAT(message_of(write(kGood + "x")), HasSubstr("bytes after the values"));
  EXPECT_THAT(
      message_of(write(std::string("\0\0\x08\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 16))),
      HasSubstr("impossible size"));
}

TEST_F(IdxTest, AMissingFileIsNamed) {
  try {
    read_idx(folder / "absent");
    FAIL();
  } catch (const SystemError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("absent"), HasSubstr("No such file")));
  }
}

}  // namespace
}  // namespace muster::detail
