#include "muster/testing/operation_checks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "muster/base/dtype.h"
#include "muster/collective/operation.h"

namespace muster::detail::testing {
namespace {

// Small whole numbers, different for every rank and element, whose sums and products are exact in every type.
double value_of(int rank, size_t i) {
  return static_cast<double>((i * 3 + static_cast<size_t>(rank) * 5) % 7) - 3;
}

template <typename T>
T convert(double value) {
  if constexpr (std::is_same_v<T, Float16>) {
    return to_float16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <typename T>
double back(T value) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
    return to_float(value);
  } else {
    return static_cast<double>(value);
  }
}

// Calls `visit` with a value of the element's C++ type.
template <typename Visit>
void with_type(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kFloat32:
      return visit(float{});
    case DType::kFloat64:
      return visit(double{});
    case DType::kFloat16:
      return visit(Float16{});
    case DType::kBFloat16:
      return visit(BFloat16{});
    case DType::kInt8:
      return visit(int8_t{});
    case DType::kInt32:
      return visit(int32_t{});
    case DType::kInt64:
      return visit(int64_t{});
  }
}

double reduced(ReduceOp op, int ranks, size_t i) {
  double result = value_of(0, i);
  for (int rank = 1; rank < ranks; ++rank) {
    const double value = value_of(rank, i);
    switch (op) {
      case ReduceOp::kMin:
        result = std::min(result, value);
        break;
      case ReduceOp::kMax:
        result = std::max(result, value);
        break;
      case ReduceOp::kProduct:
        result *= value;
        break;
      default:
        result += value;
    }
  }
  return op == ReduceOp::kAverage ? result / ranks : result;
}

// A buffer in the arena or in ordinary memory, followed by a guard.
template <typename T>
class Buffer {
 public:
  Buffer(Communicator& comm, size_t count, bool arena) : count_(count) {
    if (arena) {
      shared_ = comm.allocate((count + 1) * sizeof(T));
      data_ = static_cast<T*>(shared_.get());
    } else {
      own_.resize((count + 1) * sizeof(T));
      data_ = reinterpret_cast<T*>(own_.data());
    }
    memset(static_cast<void*>(data_ + count), 42, sizeof(T));
  }
  ~Buffer() {
    const auto* const guard = reinterpret_cast<const std::byte*>(data_ + count_);
    const auto is_whole = [](std::byte byte) { return byte == std::byte{42}; };
    EXPECT_TRUE(std::all_of(guard, guard + sizeof(T), is_whole)) << "wrote past the end";
  }
  T* data() { return data_; }
  T& operator[](size_t i) { return data_[i]; }

 private:
  size_t count_;
  std::shared_ptr<void> shared_;
  std::vector<std::byte> own_;
  T* data_;
};

// Every operation on one type, count and kind of memory, checked element by element.
template <typename T>
void check_operations(Communicator& comm, DType dtype, size_t count, bool arena) {
  const int ranks = comm.size();
  const int rank = comm.rank();
  const auto n = static_cast<size_t>(ranks);
  const auto mine = static_cast<size_t>(rank);
  const auto fill = [](Buffer<T>& buffer, int from, size_t size, size_t first = 0) {
    for (size_t i = 0; i < size; ++i) buffer[i] = convert<T>(value_of(from, first + i));
  };
  for (const auto op :
       {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    if (op == ReduceOp::kProduct && ranks > 4) continue;  // too large for int8
    SCOPED_TRACE(name_of(op));
    const auto expected = [&](size_t i) { return back(convert<T>(reduced(op, ranks, i))); };
    // An average over ranks that are no power of two is not exact; close is enough there.
    const auto agrees = [&](T value, size_t i) {
      if (op != ReduceOp::kAverage || dtype == DType::kInt8 || dtype == DType::kInt32 ||
          dtype == DType::kInt64)
        return back(value) == expected(i);
      const double tolerance = dtype == DType::kBFloat16 ? 0.02 : dtype == DType::kFloat16 ? 0.004 : 1e-6;
      return std::abs(back(value) - reduced(op, ranks, i)) <=
             tolerance * (1 + std::abs(reduced(op, ranks, i)));
    };
    Buffer<T> data(comm, count, arena);
    fill(data, rank, count);
    comm.all_reduce(data.data(), count, dtype, op);
    for (size_t i = 0; i < count; ++i)
      ASSERT_TRUE(agrees(data[i], i))
          << "all_reduce element " << i << ": " << back(data[i]) << " not " << expected(i);

    Buffer<T> many(comm, n * count, arena);
    Buffer<T> one(comm, count, arena);
    fill(many, rank, n * count);
    comm.reduce_scatter(many.data(), one.data(), count, dtype, op);
    for (size_t i = 0; i < count; ++i)
      ASSERT_TRUE(agrees(one[i], mine * count + i)) << "reduce_scatter element " << i;
    for (size_t i = 0; i < n * count; ++i)
      ASSERT_EQ(back(many[i]), back(convert<T>(value_of(rank, i)))) << "reduce_scatter changed its input";

    const int root = ranks / 2;
    fill(data, rank, count);
    comm.reduce(data.data(), count, dtype, op, root);
    for (size_t i = 0; i < count; ++i) {
      if (rank == root) {
        ASSERT_TRUE(agrees(data[i], i)) << "reduce element " << i;
      } else {
        ASSERT_EQ(back(data[i]), back(convert<T>(value_of(rank, i))))
            << "reduce changed a rank that is not the root";
      }
    }
  }
  Buffer<T> one(comm, count, arena);
  Buffer<T> many(comm, n * count, arena);
  Buffer<T> other(comm, n * count, arena);
  fill(one, rank, count);
  comm.all_gather(one.data(), many.data(), count, dtype);
  for (size_t i = 0; i < n * count; ++i)
    ASSERT_EQ(back(many[i]), back(convert<T>(value_of(static_cast<int>(i / count), i % count))))
        << "all_gather " << i;
  memset(static_cast<void*>(many.data()), 0, n * count * sizeof(T));
  for (size_t i = 0; i < count; ++i) many[mine * count + i] = one[i];
  comm.all_gather(many.data() + mine * count, many.data(), count, dtype);
  for (size_t i = 0; i < n * count; ++i)
    ASSERT_EQ(back(many[i]), back(convert<T>(value_of(static_cast<int>(i / count), i % count))))
        << "in place " << i;

  fill(many, rank, n * count);
  comm.all_to_all(many.data(), other.data(), count, dtype);
  for (size_t i = 0; i < n * count; ++i) {
    const auto from = static_cast<int>(i / count);
    ASSERT_EQ(back(other[i]), back(convert<T>(value_of(from, mine * count + i % count))))
        << "all_to_all " << i;
  }
  for (int root = 0; root < ranks; ++root) {
    fill(one, rank, count);
    comm.broadcast(one.data(), count, dtype, root);
    for (size_t i = 0; i < count; ++i)
      ASSERT_EQ(back(one[i]), back(convert<T>(value_of(root, i)))) << "broadcast " << i;
  }
  comm.barrier();
  if (ranks > 1) {
    fill(one, rank, count);
    const int to = (rank + 1) % ranks;
    const int from = (rank + ranks - 1) % ranks;
    Buffer<T> received(comm, count, arena);
    Work sending = comm.send_async(one.data(), count, dtype, to);
    comm.receive(received.data(), count, dtype, from);
    sending.wait();
    for (size_t i = 0; i < count; ++i)
      ASSERT_EQ(back(received[i]), back(convert<T>(value_of(from, i)))) << "message " << i;
  }
}

}  // namespace

void check_all_operations(Communicator& communicator) {
  for (const auto dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16, DType::kInt8,
                           DType::kInt32, DType::kInt64}) {
    for (const size_t count : {0, 1, 3, 97, 1500}) {
      for (const bool arena : {true, false}) {
        if (dtype != DType::kFloat32 && count == 1500) continue;
        SCOPED_TRACE(fmt::format("{} x {}, {}", name_of(dtype), count, arena ? "arena" : "ordinary memory"));
        with_type(dtype, [&]<typename T>(T) { check_operations<T>(communicator, dtype, count, arena); });
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

std::vector<uint32_t> inexact_average(Communicator& communicator, size_t count) {
  std::vector<float> data(count);
  for (size_t i = 0; i < count; ++i)
    data[i] = std::sin(static_cast<float>(i * 31 + static_cast<size_t>(communicator.rank()) * 17)) * 1e4F;
  communicator.all_reduce(data.data(), count, DType::kFloat32, ReduceOp::kAverage);
  std::vector<uint32_t> bits(count);
  std::transform(data.begin(), data.end(), bits.begin(), std::bit_cast<uint32_t, float>);
  return bits;
}

}  // namespace muster::detail::testing
