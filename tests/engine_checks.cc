#include "engine_checks.h"

#include <cmath>
#include <limits>
#include <thread>

#include "run_task.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/convert.h"
#include "muster/base/error.h"
#include "muster/collective/operation.h"
#include "muster/collective/plan/plan.h"
#include "muster/run.h"
#include "muster/testing/operation_checks.h"

namespace muster::detail::testing {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

namespace {

// What the call threw, with its type; "" when nothing.
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return fmt::format("InvalidArgument: {}", error.what());
  } catch (const DeadlineExceeded& error) {
    return fmt::format("DeadlineExceeded: {}", error.what());
  } catch (const PeerLost& error) {
    return fmt::format("PeerLost: {}", error.what());
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

void check_same_bits(Communicator& communicator) {
  for (const size_t count : {100, 5000, 100'000}) {
    const auto mine = inexact_average(communicator, count);
    std::vector<uint32_t> all(static_cast<size_t>(communicator.size()) * count);
    communicator.all_gather(mine.data(), all.data(), count, DType::kInt32);
    for (size_t i = 0; i < all.size(); ++i)
      ASSERT_EQ(all[i], mine[i % count]) << "element " << i % count << " of rank " << i / count;
  }
}

namespace {

// Of one type: element i is of rank i's, which brings what is not a number there; the last is a number.
template <typename Wide>
void check_no_number_of(Communicator& communicator, DType dtype) {
  const auto ranks = static_cast<size_t>(communicator.size());
  const auto rank = static_cast<size_t>(communicator.rank());
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kSum}) {
    SCOPED_TRACE(fmt::format("{} {}", name_of(dtype), static_cast<int>(op)));
    std::vector<Wide> values(ranks + 1, static_cast<Wide>(rank) - 1);
    values[rank] = std::numeric_limits<Wide>::quiet_NaN();
    std::vector<std::byte> data(values.size() * size_of(dtype));
    const DType wide = sizeof(Wide) == 8 ? DType::kFloat64 : DType::kFloat32;
    convert(wide, values.data(), dtype, data.data(), values.size());
    communicator.all_reduce(data.data(), values.size(), dtype, op);
    convert(dtype, data.data(), wide, values.data(), values.size());
    for (size_t i = 0; i < ranks; ++i) EXPECT_TRUE(std::isnan(values[i])) << values[i] << " at " << i;
    const auto sum = static_cast<Wide>(ranks) * (static_cast<Wide>(ranks) - 3) / 2;
    EXPECT_EQ(values[ranks], op == ReduceOp::kMin   ? Wide{-1}
                             : op == ReduceOp::kMax ? static_cast<Wide>(ranks) - 2
                                                    : sum);
  }
}

}  // namespace

void check_no_number(Communicator& communicator) {
  check_no_number_of<float>(communicator, DType::kFloat32);
  check_no_number_of<double>(communicator, DType::kFloat64);
  check_no_number_of<float>(communicator, DType::kFloat16);
  check_no_number_of<float>(communicator, DType::kBFloat16);
}

void check_operations_in_flight(Communicator& communicator) {
  constexpr size_t kOperations = 40;
  const int ranks = communicator.size();
  const auto rank = static_cast<float>(communicator.rank());
  std::vector<std::vector<float>> sums(kOperations);
  std::vector<std::vector<float>> received(static_cast<size_t>(ranks), std::vector<float>(50'000));
  const std::vector<float> sent(50'000, rank);
  std::vector<Work> works;
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == communicator.rank()) continue;
    works.push_back(communicator.send_async(sent.data(), sent.size(), DType::kFloat32, peer));
  }
  for (size_t i = 0; i < kOperations; ++i) {
    sums[i].assign(1 + i * 37 % 3000, (rank + 1) * static_cast<float>(i));
    works.push_back(communicator.all_reduce_async(sums[i].data(), sums[i].size(), DType::kFloat32));
  }
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == communicator.rank()) continue;
    auto& data = received[static_cast<size_t>(peer)];
    communicator.receive(data.data(), data.size(), DType::kFloat32, peer);
    for (const float value : data) ASSERT_EQ(value, static_cast<float>(peer));
  }
  for (auto& work : works) work.wait();
  const int of_ranks = ranks * (ranks + 1) / 2;
  for (size_t i = 0; i < kOperations; ++i) {
    for (const float value : sums[i]) ASSERT_EQ(value, static_cast<float>(of_ranks) * static_cast<float>(i));
  }
}

void check_split(Communicator& communicator) {
  const int rank = communicator.rank();
  const auto half = communicator.split(rank % 2, -rank);
  ASSERT_TRUE(half);
  std::vector<int32_t> expected;
  for (int other = communicator.size() - 1; other >= 0; --other) {
    if (other % 2 == rank % 2) expected.push_back(other);
  }
  std::vector<int32_t> members(static_cast<size_t>(half->size()));
  half->all_gather(&rank, members.data(), 1, DType::kInt32);
  EXPECT_EQ(members, expected);
  EXPECT_EQ(half->topology().hosts(), 1);
  check_same_bits(*half);

  const auto without_first = communicator.split(rank == 0 ? -1 : 0);
  EXPECT_EQ(without_first == nullptr, rank == 0);
  if (without_first) {
    EXPECT_EQ(without_first->size(), communicator.size() - 1);
    check_operations_in_flight(*without_first);
  }
  communicator.barrier();
}

void check_mismatch(Communicator& communicator) {
  std::vector<float> data(100);
  communicator.barrier();
  const auto reduce = [&] {
    communicator.all_reduce(data.data(), communicator.rank() == 1 ? 7 : 100, DType::kFloat32);
  };
  EXPECT_THAT(error_of(reduce),
              AllOf(HasSubstr("InvalidArgument"), HasSubstr("rank 1 called all_reduce(float32 x 7, sum)"),
                    HasSubstr("rank 0 called all_reduce(float32 x 100, sum)"), HasSubstr("number 2")));
  EXPECT_THAT(error_of([&] { communicator.barrier(); }), HasSubstr("rank 1 called"))
      << "later operations throw the same";
}

void check_deadline(Communicator& communicator) {
  const bool late = communicator.rank() == 1;
  std::vector<float> data(100);
  communicator.barrier();
  if (late) std::this_thread::sleep_for(600ms);  // longer than the others wait
  const std::string error = error_of([&] {
    communicator.all_reduce(data.data(), data.size(), DType::kFloat32, ReduceOp::kSum,
                            Deadline::after(200ms));
  });
  EXPECT_THAT(error, HasSubstr("all_reduce(float32 x 100, sum) number 2"));
  if (late) return;
  EXPECT_THAT(error, HasSubstr("DeadlineExceeded"));
  EXPECT_THAT(error_of([&] { communicator.barrier(); }), HasSubstr("DeadlineExceeded"));
}

int reduce_in_a_job(const std::vector<std::string>&) {
  return run_task([](Job& job) {
    Communicator& communicator = job.communicator();
    std::vector<float> data(1000, 1);
    communicator.all_reduce(data.data(), data.size(), DType::kFloat32);
    fmt::print("{} ranks, {}\n", data.back(), communicator.explain({}));
  });
}

}  // namespace muster::detail::testing
