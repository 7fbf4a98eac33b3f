#include "examples/mnist_data.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"

namespace examples {
namespace {

using ::testing::HasSubstr;

TEST(Mnist, TheShippedSubsetIsBalancedAndNormalised) {
  const auto train = load_mnist(MUSTER_TEST_MNIST, /*train=*/true);
  EXPECT_EQ(train.images.sizes().vec(), (std::vector<int64_t>{train.size(), 1, 28, 28}));
  EXPECT_GE(train.size(), 2000);
  const auto counts = at::bincount(train.labels, {}, 10);
  EXPECT_TRUE(counts.eq(train.size() / 10).all().item<bool>()) << counts;
  EXPECT_NEAR(train.images.mean().item<double>(), 0, 0.05);
  EXPECT_NEAR(train.images.std().item<double>(), 1, 0.05);
  const auto test = load_mnist(MUSTER_TEST_MNIST, /*train=*/false);
  EXPECT_TRUE(at::bincount(test.labels, {}, 10).eq(test.size() / 10).all().item<bool>());
}

TEST(Mnist, FilesThatAreMissingOrDoNotBelongTogetherAreNamed) {
  const auto folder = std::filesystem::temp_directory_path() / ("mnist_test." + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  try {
    load_mnist(folder, true);
    FAIL();
  } catch (const muster::InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("train-images-idx3-ubyte"));
  }
  const std::filesystem::path subset = MUSTER_TEST_MNIST;
  std::filesystem::copy_file(subset / "train-images-idx3-ubyte.gz", folder / "train-images-idx3-ubyte.gz");
  std::filesystem::copy_file(subset / "t10k-labels-idx1-ubyte.gz", folder / "train-labels-idx1-ubyte.gz");
  try {
    load_mnist(folder, true);
    FAIL();
  } catch (const muster::DataLoss& error) {
    EXPECT_THAT(error.what(), HasSubstr("5000 images"));
    EXPECT_THAT(error.what(), HasSubstr("1000 labels"));
  }
  std::filesystem::remove_all(folder);
}

TEST(FetchedMnist, FollowsXdgAndHome) {
  unsetenv("XDG_DATA_HOME");
  setenv("HOME", "/nonexistent", 1);
  EXPECT_FALSE(fetched_mnist());
  const auto folder = std::filesystem::temp_directory_path() / ("xdg_test." + std::to_string(getpid()));
  std::filesystem::create_directories(folder / "muster" / "mnist");
  setenv("XDG_DATA_HOME", folder.c_str(), 1);
  EXPECT_FALSE(fetched_mnist());
  std::ofstream(folder / "muster" / "mnist" / "train-images-idx3-ubyte") << "x";
  EXPECT_EQ(fetched_mnist(), folder / "muster" / "mnist");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace examples
