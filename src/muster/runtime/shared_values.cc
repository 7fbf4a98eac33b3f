#include "muster/runtime/shared_values.h"

#include <limits>
#include <numeric>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>

#include "muster/base/error.h"

namespace muster::detail {

namespace {

// So many tensors can be lent over a connection at a time.
constexpr uint32_t kSlots = 4096;

// Smaller tensors are sent: a copy costs less than what a loan takes.
constexpr size_t kSmallest = 16384;

// Of a tensor that is lent, as libtorch's own are; the views of one need not be.
constexpr size_t kAlignment = 64;

}  // namespace

TaskMemory::TaskMemory(bool is_shared, size_t limit)
    : is_shared_(is_shared),
      arena_(Arena::create()),
      tensors_(
          [arena = arena_](size_t bytes) {
            return std::shared_ptr<void>(arena->allocate(bytes),
                                         [arena](void* memory) { arena->free(memory); });
          },
          limit == 0 ? std::numeric_limits<size_t>::max() : limit) {}

void TaskMemory::keep(std::shared_ptr<LentTensors> lent) {
  const MutexLock lock(mutex_);
  kept_.push_back(std::move(lent));
}

void TaskMemory::take_back() {
  const MutexLock lock(mutex_);
  std::erase_if(kept_, [](const auto& lent) {
    lent->take_back();
    return lent->empty();
  });
}

LentTensors::LentTensors(const Word* returned, std::shared_ptr<void> keeps)
    : returned_(returned), keeps_(std::move(keeps)), lent_(kSlots), are_free_(kSlots) {
  std::iota(are_free_.rbegin(), are_free_.rend(), 0);
}

std::optional<Loan> LentTensors::add(at::Tensor tensor, uint64_t offset) {
  const MutexLock lock(mutex_);
  if (are_free_.empty()) return std::nullopt;
  const uint32_t slot = are_free_.back();
  are_free_.pop_back();
  in_use_.push_back(slot);
  Lent& lent = lent_[slot];
  lent.tensor = std::move(tensor);
  return Loan{.offset = offset, .slot = slot, .number = ++lent.number};
}

void LentTensors::take_back() {
  const MutexLock lock(mutex_);
  std::erase_if(in_use_, [this](uint32_t slot) {
    mutex_.assert_held();
    Lent& lent = lent_[slot];
    if (returned_[slot].load(std::memory_order_acquire) != lent.number) return false;
    lent.tensor.reset();
    are_free_.push_back(slot);
    return true;
  });
}

void LentTensors::forget(const Loan& loan) {
  const MutexLock lock(mutex_);
  Lent& lent = lent_[loan.slot];
  if (lent.number != loan.number || std::erase(in_use_, loan.slot) == 0) return;
  lent.tensor.reset();
  are_free_.push_back(loan.slot);
}

bool LentTensors::empty() const {
  const MutexLock lock(mutex_);
  return in_use_.empty();
}

struct SharedValues::Borrowed {
  explicit Borrowed(std::shared_ptr<Arena> own)
      : ours(std::move(own)), words(static_cast<Word*>(ours->allocate(kSlots * sizeof(Word)))) {
    for (uint32_t i = 0; i < kSlots; ++i) new (words + i) Word(0);
  }
  ~Borrowed() { ours->free(words); }

  const std::shared_ptr<Arena> ours;
  Word* const words;
  std::shared_ptr<Arena> theirs;  // since they have told of it
};

struct SharedValues::BorrowedTensor {
  const std::shared_ptr<Borrowed> from;
  const uint32_t slot;
  const uint32_t number;
};

std::shared_ptr<SharedValues> SharedValues::exchange(Connection& connection, TaskMemory& memory,
                                                     Deadline deadline, const std::function<void()>& check) {
  auto borrowed = std::make_shared<Borrowed>(memory.arena());
  const uint64_t ours = memory.arena()->offset_of(borrowed->words);
  connection.send_descriptor(memory.arena()->fd(), deadline, check);
  connection.send(&ours, sizeof(ours), deadline, check);
  borrowed->theirs = Arena::open(connection.receive_descriptor(deadline, check), Arena::Access::kReadOnly);
  uint64_t theirs = 0;
  connection.receive(&theirs, sizeof(theirs), deadline, check);
  const size_t capacity = borrowed->theirs->capacity();
  if (capacity < kSlots * sizeof(Word) || theirs > capacity - kSlots * sizeof(Word) ||
      theirs % alignof(Word) != 0)
    raise<InvalidArgument>("what came over a data link is no memory for loans");
  const auto* returned = reinterpret_cast<const Word*>(borrowed->theirs->at(theirs));
  auto lent = std::make_shared<LentTensors>(returned, borrowed->theirs);
  return std::shared_ptr<SharedValues>(new SharedValues(memory, std::move(borrowed), std::move(lent)));
}

SharedValues::~SharedValues() {
  if (!ended_here_) return;
  lent_->take_back();
  if (!lent_->empty()) memory_.keep(lent_);
}

std::optional<Loan> SharedValues::lend(const at::Tensor& tensor) {
  const size_t bytes = tensor.nbytes();
  if (bytes < kSmallest) return std::nullopt;
  at::Tensor kept = tensor.detach();
  const bool can_stay = memory_.arena()->contains(tensor.data_ptr(), bytes) &&
                        memory_.arena()->offset_of(tensor.data_ptr()) % kAlignment == 0;
  if (!can_stay) {
    const TensorMemory::Scope scope(memory_.tensors());
    kept = at::empty(tensor.sizes(), tensor.options()).copy_(kept);
  }
  lent_->take_back();
  const uint64_t offset = memory_.arena()->offset_of(kept.data_ptr());
  return lent_->add(std::move(kept), offset);
}

void SharedValues::give_back(void* borrowed) {
  const std::unique_ptr<BorrowedTensor> tensor(static_cast<BorrowedTensor*>(borrowed));
  tensor->from->words[tensor->slot].store(tensor->number, std::memory_order_release);
}

at::Tensor SharedValues::borrow(const Loan& loan, at::IntArrayRef sizes, at::ScalarType dtype) {
  at::Tensor tensor = at::empty({0}, at::TensorOptions(dtype));
  const size_t bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(dtype);
  const size_t capacity = borrowed_->theirs->capacity();
  if (loan.slot >= kSlots || bytes > capacity || loan.offset > capacity - bytes ||
      loan.offset % kAlignment != 0)
    raise<InvalidArgument>("a value lies where no memory is that is lent");
  void* data = borrowed_->theirs->at(loan.offset);
  auto* context = new BorrowedTensor{borrowed_, loan.slot, loan.number};
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                       c10::DataPtr(data, context, &SharedValues::give_back, c10::Device(c10::kCPU)),
                       /*allocator=*/nullptr, /*resizable=*/false);
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

bool SharedValues::is_borrowed(const at::Tensor& tensor) {
  return tensor.storage().data_ptr().get_deleter() == &SharedValues::give_back;
}

}  // namespace muster::detail
