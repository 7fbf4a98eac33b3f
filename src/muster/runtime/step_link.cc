#include "muster/runtime/step_link.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "muster/base/error.h"

namespace muster::detail {

namespace {

enum class ValueType : uint32_t { kNone, kUndefined, kTensor, kLent, kInteger, kReal, kBoolean, kIntegers };

// Between machines of one byte order, as all of the data plane.
struct FrameHead {
  uint32_t kind = 0;
  uint32_t key = 0;
  uint64_t step = 0;
  uint64_t handle = 0;
  uint32_t type = 0;   // a ValueType
  uint32_t dtype = 0;  // of a tensor
  uint32_t sizes = 0;  // how many numbers follow: the sizes of a tensor, or a value that is no tensor
  uint32_t text = 0;   // bytes of text that follow
  uint64_t bytes = 0;  // of a tensor, which are the last
  Loan loan;           // of one that is lent
};

// Waits end when the link is ended.
constexpr auto kNoCheck = [] {};

constexpr auto kCheckEvery = std::chrono::milliseconds(50);

constexpr uint32_t kMostSizes = 1 << 20;
constexpr uint32_t kMostText = 16 << 20;
constexpr uint32_t kMostDimensions = 64;
constexpr size_t kScratch = size_t{1} << 20;

struct Packed {
  FrameHead head;
  std::vector<int64_t> numbers;
  at::Tensor tensor;
};

Packed pack(const c10::IValue& value) {
  Packed packed;
  const auto set = [&packed](ValueType type) { packed.head.type = static_cast<uint32_t>(type); };
  if (value.isNone()) {
    set(ValueType::kNone);
  } else if (value.isTensor() && !value.toTensor().defined()) {
    set(ValueType::kUndefined);
  } else if (value.isTensor()) {
    set(ValueType::kTensor);
    const at::Tensor& tensor = value.toTensor();
    if (tensor.layout() != at::kStrided || tensor.is_quantized() || !tensor.device().is_cpu())
      raise<InvalidArgument>(
          "a tensor that is not dense, quantized or on another device than the CPU can't go "
          "from task to task");
    // Only bytes go: not what libtorch would still do to them.
    packed.tensor = tensor.resolve_conj().resolve_neg().contiguous();
    packed.head.dtype = static_cast<uint32_t>(packed.tensor.scalar_type());
    packed.numbers.assign(packed.tensor.sizes().begin(), packed.tensor.sizes().end());
    packed.head.bytes = packed.tensor.nbytes();
  } else if (value.isInt()) {
    set(ValueType::kInteger);
    packed.numbers = {value.toInt()};
  } else if (value.isBool()) {
    set(ValueType::kBoolean);
    packed.numbers = {value.toBool() ? 1 : 0};
  } else if (value.isDouble()) {
    set(ValueType::kReal);
    packed.numbers = {std::bit_cast<int64_t>(value.toDouble())};
  } else if (value.isIntList()) {
    set(ValueType::kIntegers);
    packed.numbers = value.toIntVector();
  } else {
    raise<InvalidArgument>("a value of type {} can't go from task to task", value.tagKind());
  }
  packed.head.sizes = static_cast<uint32_t>(packed.numbers.size());
  return packed;
}

[[noreturn]] void refuse(const char* what) {
  raise<InvalidArgument>("what came over a data link is no frame: {}", what);
}

at::ScalarType checked_type(const FrameHead& head, const std::vector<int64_t>& sizes) {
  if (head.dtype >= static_cast<uint32_t>(at::ScalarType::Undefined) || sizes.size() > kMostDimensions)
    refuse("a tensor of an unknown type");
  const auto dtype = static_cast<at::ScalarType>(head.dtype);
  if (at::isQIntType(dtype)) refuse("a tensor of a quantized type");
  uint64_t bytes = c10::elementSize(dtype);
  for (const int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes))
      refuse("a tensor of impossible sizes");
  }
  if (bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    refuse("a tensor of impossible sizes");
  if (bytes != head.bytes) refuse("a tensor of other sizes than it has bytes");
  return dtype;
}

}  // namespace

StepLink::StepLink(Connection connection, Options options)
    : options_(std::move(options)),
      link_(
          [&connection] {
            std::vector<Connection> one;
            one.push_back(std::move(connection));
            return one;
          }(),
          /*encrypted=*/false) {}

// To send a frame; others wait for theirs.
class StepLink::Turn {
 public:
  Turn(StepLink& link, const Check& check) : link_(link) {
    MutexLock lock(link_.mutex_);
    while (link_.is_sending_) {
      if (check) {
        lock.unlock();
        check();
        lock.lock();
        link_.changed_.wait_until(lock, Deadline::after(kCheckEvery).time_point());
      } else {
        link_.changed_.wait(lock);
      }
    }
    link_.is_sending_ = true;
  }
  ~Turn() {
    const MutexLock lock(link_.mutex_);
    link_.is_sending_ = false;
    link_.changed_.notify_one();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  StepLink& link_;
};

void StepLink::send(const StepFrame& frame, const Check& check) {
  Packed packed = pack(frame.kind == StepFrame::Kind::kValue ? frame.value : c10::IValue());
  packed.head.kind = static_cast<uint32_t>(frame.kind);
  packed.head.key = frame.key;
  packed.head.step = frame.step;
  packed.head.handle = frame.handle;
  packed.head.text = static_cast<uint32_t>(std::min<size_t>(frame.text.size(), kMostText));
  std::optional<Loan> loan;
  // With a handle it is for longer than a step.
  if (packed.tensor.defined() && options_.shared && frame.handle == 0) {
    loan = options_.shared->lend(packed.tensor);
    if (loan) {
      packed.head.type = static_cast<uint32_t>(ValueType::kLent);
      packed.head.loan = *loan;
      packed.tensor.reset();
    }
  }
  const size_t inline_bytes = packed.tensor.defined() ? packed.head.bytes : 0;
  const std::array<iovec, 4> parts = {
      iovec{&packed.head, sizeof(FrameHead)},
      iovec{packed.numbers.data(), packed.numbers.size() * sizeof(int64_t)},
      iovec{const_cast<char*>(frame.text.data()), packed.head.text},
      iovec{packed.tensor.defined() ? packed.tensor.data_ptr() : nullptr, inline_bytes}};
  try {
    const Turn turn(*this, check);
    try {
      link_.send(parts, check ? check : kNoCheck);
    } catch (const PeerLost&) {
      throw;
    } catch (...) {
      end();
      throw;
    }
  } catch (...) {
    if (loan) options_.shared->forget(*loan);  // a frame that is not whole is not heard
    throw;
  }
}

// Reads what nobody takes.
void StepLink::drain(size_t bytes) {
  std::vector<std::byte> scratch(std::min(bytes, kScratch));
  while (bytes > 0) {
    const iovec part = {scratch.data(), std::min(bytes, scratch.size())};
    link_.receive({&part, 1}, kNoCheck);
    bytes -= part.iov_len;
  }
}

StepFrame StepLink::receive() {
  const auto head = link_.receive_one<FrameHead>(kNoCheck);
  if (head.kind < static_cast<uint32_t>(StepFrame::Kind::kValue) ||
      head.kind > static_cast<uint32_t>(StepFrame::Kind::kAbort) || head.sizes > kMostSizes ||
      head.text > kMostText || head.type > static_cast<uint32_t>(ValueType::kIntegers))
    refuse("its head makes no sense");
  StepFrame frame{.kind = static_cast<StepFrame::Kind>(head.kind),
                  .key = head.key,
                  .step = head.step,
                  .handle = head.handle};
  std::vector<int64_t> numbers(head.sizes);
  frame.text.resize(head.text);
  const std::array<iovec, 2> parts = {iovec{numbers.data(), numbers.size() * sizeof(int64_t)},
                                      iovec{frame.text.data(), frame.text.size()}};
  if (head.sizes + head.text > 0) link_.receive(parts, kNoCheck);
  const auto type = static_cast<ValueType>(head.type);
  const bool is_number =
      type == ValueType::kInteger || type == ValueType::kReal || type == ValueType::kBoolean;
  if (is_number && numbers.size() != 1) refuse("a number without a value");
  if (type != ValueType::kTensor && type != ValueType::kLent && head.bytes != 0) refuse("bytes of nothing");
  switch (type) {
    case ValueType::kNone:
      break;
    case ValueType::kUndefined:
      frame.value = at::Tensor();
      break;
    case ValueType::kTensor: {
      const at::ScalarType dtype = checked_type(head, numbers);
      at::Tensor tensor;
      try {
        const TensorMemory::Scope scope(options_.memory->tensors());
        tensor = at::empty(numbers, at::TensorOptions(dtype));
      } catch (const std::exception& error) {
        frame.status = StepStatus::of(error);
        drain(head.bytes);
        break;
      }
      const iovec part = {tensor.data_ptr(), head.bytes};
      if (head.bytes > 0) link_.receive({&part, 1}, kNoCheck);
      frame.value = std::move(tensor);
      break;
    }
    case ValueType::kLent: {
      if (!options_.shared) refuse("a loan over a link without memory");
      at::Tensor tensor = options_.shared->borrow(head.loan, numbers, checked_type(head, numbers));
      try {
        const TensorMemory::Scope scope(options_.memory->tensors());
        frame.value = options_.copies ? tensor.clone() : tensor;
      } catch (const std::exception& error) {
        frame.status = StepStatus::of(error);
      }
      break;
    }
    case ValueType::kInteger:
      frame.value = numbers.front();
      break;
    case ValueType::kReal:
      frame.value = std::bit_cast<double>(numbers.front());
      break;
    case ValueType::kBoolean:
      frame.value = numbers.front() != 0;
      break;
    case ValueType::kIntegers:
      frame.value = numbers;
      break;
  }
  return frame;
}

}  // namespace muster::detail
