#include "muster/data/mnist.h"

#include <unistd.h>

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster {
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
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("train-images-idx3-ubyte"));
  }
  const std::filesystem::path subset = MUSTER_TEST_MNIST;
  std::filesystem::copy_file(subset / "train-images-idx3-ubyte.gz", folder / "train-images-idx3-ubyte.gz");
  std::filesystem::copy_file(subset / "t10k-labels-idx1-ubyte.gz", folder / "train-labels-idx1-ubyte.gz");
  try {
    load_mnist(folder, true);
    FAIL();
  } catch (const DataLoss& error) {
    EXPECT_THAT(error.what(), HasSubstr("5000 images"));
    EXPECT_THAT(error.what(), HasSubstr("1000 labels"));
  }
  std::filesystem::remove_all(folder);
}

TEST(FetchedMnist, FollowsXdgAndHome) {
  EXPECT_FALSE(fetched_mnist(Environment{{"HOME", "/nonexistent"}}));
  const auto folder = std::filesystem::temp_directory_path() / ("xdg_test." + std::to_string(getpid()));
  std::filesystem::create_directories(folder / "muster" / "mnist");
  EXPECT_FALSE(fetched_mnist(Environment{{"XDG_DATA_HOME", folder}}));
  std::ofstream(folder / "muster" / "mnist" / "train-images-idx3-ubyte") << "x";
  EXPECT_EQ(fetched_mnist(Environment{{"XDG_DATA_HOME", folder}}), folder / "muster" / "mnist");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace muster
