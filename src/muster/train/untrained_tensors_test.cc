#include "muster/train/untrained_tensors.h"

#include <cstring>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/ps/table/table_service_test.h"

namespace muster::detail {
namespace {

using testing::TableServers;
using torch::Tensor;

std::string bits_of(const Tensor& tensor) {
  const Tensor dense = tensor.detach().contiguous();
  return {static_cast<const char*>(dense.data_ptr()), dense.nbytes()};
}

std::vector<Tensor> zeros_like(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> zeros;
  for (const auto& tensor : tensors) zeros.push_back(torch::zeros_like(tensor));
  return zeros;
}

void expect_same_bits(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(bits_of(actual[i]) == bits_of(expected[i])) << "tensor " << i;
}

// All 32-bit patterns of interest as floats: signalling NaNs, denormals, -0.
Tensor awkward_floats() {
  const std::vector<uint32_t> patterns = {0x7f800001, 0xffbfffff, 0x00000001, 0x80000000, 0x7fc12345};
  Tensor tensor = torch::zeros({static_cast<int64_t>(patterns.size())});
  memcpy(tensor.data_ptr(), patterns.data(), tensor.nbytes());
  return tensor;
}

TEST(UntrainedTensors, AreLoadedBitByBitFromSeveralServers) {
  const TableServers servers(2);
  TableClient chief(servers.options(0));
  TableClient other(servers.options(1));
  const std::vector<Tensor> stored = {
      awkward_floats(),
      torch::full({}, std::numeric_limits<int64_t>::min(), torch::kInt64),
      torch::empty({0}),
      torch::randn({3, 5}).to(torch::kHalf),
      torch::arange(7).to(torch::kInt8),  // the next one does not begin at a whole word
      torch::randn({40, 30}).t(),
      torch::randn({3'000'000}),  // more than travels at once
      torch::ones({5}, torch::kBool)};
  UntrainedTensors(chief, 1).store(0, stored);
  const auto loaded = zeros_like(stored);
  UntrainedTensors(other, 1).load(0, loaded);
  expect_same_bits(loaded, stored);
}

TEST(UntrainedTensors, SetsAndModelsAreApartAndAStoredSetIsReplaced) {
  const TableServers servers(1);
  TableClient client(servers.options());
  UntrainedTensors first(client, 1);
  UntrainedTensors second(client, 2);
  const auto value = [](double of) { return std::vector<Tensor>{torch::full({10}, of)}; };
  first.store(0, value(1));
  first.store(3, value(2));
  second.store(0, value(3));
  first.store(0, value(4));
  const auto loaded = [&](UntrainedTensors& from, int set) {
    auto tensors = value(0);
    from.load(set, tensors);
    return tensors[0][9].item<double>();
  };
  EXPECT_EQ(loaded(first, 0), 4);
  EXPECT_EQ(loaded(first, 3), 2);
  EXPECT_EQ(loaded(second, 0), 3);
}

TEST(UntrainedTensors, AModelWithoutThemNeedsNoTable) {
  const TableServers servers(1);
  TableClient client(servers.options());
  UntrainedTensors untrained(client, 1);
  untrained.store(0, {});
  untrained.load(0, {});
  EXPECT_THROW(client.size("muster/untrained/1"), InvalidArgument);
}

}  // namespace
}  // namespace muster::detail
