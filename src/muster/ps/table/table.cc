#include "muster/ps/table/table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "muster/base/align.h"
#include "muster/base/copy.h"
#include "muster/base/error.h"
#include "muster/base/mutex.h"
#include "muster/ps/table/row_ids.h"

namespace muster::detail {
namespace {

// Slabs so large are mapped apart, and take memory only as their rows are written.
constexpr size_t kSlab = size_t{1} << 20;
constexpr size_t kFirstIndex = 1024;

TableOptions checked(TableOptions options) {
  if (options.name.empty()) raise<InvalidArgument>("a table without a name");
  if (options.width < 1 || options.width > kWidestRow)
    raise<InvalidArgument>("table '{}': rows of {} floats; expected 1 to {}", options.name, options.width,
                           kWidestRow);
  if (!(options.scale >= 0) || !std::isfinite(options.scale))
    raise<InvalidArgument>("table '{}': scale = {}; expected a finite number that is not negative",
                           options.name, options.scale);
  if (options.rule == nullptr) raise<InvalidArgument>("table '{}' has no rule", options.name);
  return options;
}

uint64_t key_of(const TableOptions& options) {
  uint64_t key = mix(options.seed);
  for (const char c : options.name) key = mix(key ^ static_cast<unsigned char>(c));
  return key;
}

}  // namespace

Table::Table(TableOptions options)
    : options_(checked(std::move(options))),
      key_(key_of(options_)),
      stride_(round_up(sizeof(Head) + (1 + options_.rule->states()) * options_.width * sizeof(float),
                       alignof(Head))),
      rows_per_slab_(std::max<size_t>(1, kSlab / stride_)),
      index_(kFirstIndex) {}

void Table::initialise(int64_t id, float* values) const {
  const uint64_t row_key = mix(key_ ^ mix(static_cast<uint64_t>(id)));
  for (size_t i = 0; i < options_.width; ++i) {
    const auto bits = static_cast<int64_t>(mix(row_key + i) >> 40);  // 24, which a float holds exactly
    values[i] = static_cast<float>(bits - (1 << 23)) * (options_.scale / (1 << 23));
  }
}

std::byte* Table::at(uint32_t row) const {
  return slabs_[row / rows_per_slab_].get() + row % rows_per_slab_ * stride_;
}

// Where the id stands in the index, or would. The high bits of the hash: the low ones are equal for all rows
// of a server.
size_t Table::position_of(int64_t id) const {
  const size_t mask = index_.size() - 1;
  size_t position = mix(static_cast<uint64_t>(id)) >> (64 - std::countr_zero(index_.size()));
  while (index_[position] != 0 && reinterpret_cast<const Head*>(at(index_[position] - 1))->id != id)
    position = (position + 1) & mask;
  return position;
}

std::byte* Table::find(int64_t id) const {
  const uint32_t row = index_[position_of(id)];
  return row == 0 ? nullptr : at(row - 1);
}

std::byte* Table::find_or_create(int64_t id) {
  if (std::byte* found = find(id)) return found;
  if (rows_ == std::numeric_limits<uint32_t>::max())
    raise<SystemError>("table '{}' is full on this server: it has 2^32 rows", options_.name);
  if (rows_ >= index_.size() / 4 * 3) grow_index();
  if (rows_ == slabs_.size() * rows_per_slab_)
    slabs_.push_back(std::make_unique_for_overwrite<std::byte[]>(rows_per_slab_ * stride_));
  std::byte* row = at(rows_);
  std::memset(row, 0, stride_);
  reinterpret_cast<Head*>(row)->id = id;
  initialise(id, reinterpret_cast<float*>(row + sizeof(Head)));
  index_[position_of(id)] = ++rows_;
  return row;
}

void Table::grow_index() {
  index_.assign(index_.size() * 2, 0);
  for (uint32_t row = 0; row < rows_; ++row)
    index_[position_of(reinterpret_cast<const Head*>(at(row))->id)] = row + 1;
}

void Table::pull(std::span<const int64_t> ids, float* rows) const {
  const ReaderLock lock(mutex_);
  for (const int64_t id : ids) {
    if (const std::byte* row = find(id)) {
      copy_bytes(rows, row + sizeof(Head), options_.width * sizeof(float));
    } else {
      initialise(id, rows);
    }
    rows += options_.width;
  }
}

void Table::push(std::span<const int64_t> ids, const float* gradients) {
  const size_t width = options_.width;
  if (std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) != ids.end()) {
    const UniqueIds unique(ids);  // it is ascending
    return push(unique.ids, unique.add_up(gradients, width).data());
  }
  const WriterLock lock(mutex_);
  for (size_t i = 0; i < ids.size(); ++i) {
    std::byte* row = find_or_create(ids[i]);
    auto* head = reinterpret_cast<Head*>(row);
    auto* values = reinterpret_cast<float*>(row + sizeof(Head));
    options_.rule->apply({.values = values, .states = values + width, .width = width}, gradients + i * width,
                         ++head->updates);
  }
}

TableSize Table::size() const {
  const ReaderLock lock(mutex_);
  return {.rows = rows_,
          .bytes = slabs_.size() * rows_per_slab_ * stride_ + index_.size() * sizeof(uint32_t)};
}

}  // namespace muster::detail
