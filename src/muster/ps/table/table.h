#pragma once

// The rows of one embedding table that are on one server. A row is there from the first time it is pushed to;
// until then a pull gives its initial values, which follow from the table's name, its seed and the row's id
// alone. So it does not matter which server holds a row, nor when it is first seen, nor by which worker.
//
//   Table table({.name = "items", .width = 32, .rule = row_rule(adagrad({.lr = 0.05}))});
//   table.pull(ids, rows);
//   table.push(ids, gradients);
//
// Rows lie in large slabs of memory, each as its id, its count of updates, its values and their state; an
// index of 4 bytes for a row or two finds them. Thread-safe: pulls run beside each other, a push alone.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/optim/row_rules.h"

namespace muster::detail {

/// The widest row that a table has.
constexpr size_t kWidestRow = size_t{1} << 16;

struct TableOptions {
  std::string name;
  size_t width = 0;  ///< floats of a row
  RowRulePtr rule = row_rule(adagrad());
  float scale = 0.05f;  ///< initial values are uniform in [-scale, scale)
  uint64_t seed = 0;
};

struct TableSize {
  uint64_t rows = 0;
  uint64_t bytes = 0;  ///< of memory, with state and index
};

class Table {
 public:
  /// Throws InvalidArgument.
  explicit Table(TableOptions options);

  const TableOptions& options() const { return options_; }

  /// Copies `width` floats for each id to `rows`.
  void pull(std::span<const int64_t> ids, float* rows) const;

  /// Updates each row once, with the sum of its gradients in the order given. Throws SystemError at 2^32
  /// rows.
  void push(std::span<const int64_t> ids, const float* gradients);

  TableSize size() const;

 private:
  struct Head {  // of a row in its slab; values and state follow
    int64_t id;
    int64_t updates;
  };

  void initialise(int64_t id, float* values) const;
  std::byte* at(uint32_t row) const MUSTER_REQUIRES_SHARED(mutex_);
  std::byte* find(int64_t id) const MUSTER_REQUIRES_SHARED(mutex_);
  std::byte* find_or_create(int64_t id) MUSTER_REQUIRES(mutex_);
  size_t position_of(int64_t id) const MUSTER_REQUIRES_SHARED(mutex_);
  void grow_index() MUSTER_REQUIRES(mutex_);

  const TableOptions options_;
  const uint64_t key_;   // of initial values
  const size_t stride_;  // bytes from a row to the next
  const size_t rows_per_slab_;

  mutable SharedMutex mutex_;
  std::vector<std::unique_ptr<std::byte[]>> slabs_ MUSTER_GUARDED_BY(mutex_);
  // The hash of an id -> its row, from 1; 0 where there is none.
  std::vector<uint32_t> index_ MUSTER_GUARDED_BY(mutex_);
  uint32_t rows_ MUSTER_GUARDED_BY(mutex_) = 0;
};

}  // namespace muster::detail
