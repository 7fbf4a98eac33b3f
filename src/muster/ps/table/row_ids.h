#pragma once

// The ids of rows: any int64. Which server holds a row follows from its id alone.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace muster::detail {

/// Spreads ids that are near each other over all 64-bit numbers. The same on every machine.
constexpr uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15;  // the finaliser of SplitMix64 (Steele, Lea, Flood 2014)
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

/// The server, of `servers`, that holds the row.
constexpr size_t server_of(int64_t id, size_t servers) {
  return static_cast<size_t>(mix(static_cast<uint64_t>(id)) % servers);
}

/// A batch of ids, each once.
struct UniqueIds {
  std::vector<int64_t> ids;        ///< ascending
  std::vector<uint32_t> position;  ///< of each id of the batch, in `ids`

  /// Throws InvalidArgument for a batch of more than 2^32 ids.
  explicit UniqueIds(std::span<const int64_t> batch);

  /// For each of `ids` the sum of its rows, in the order of the batch. `rows` has `width` floats for each id
  /// of the batch.
  std::vector<float> add_up(const float* rows, size_t width) const;
};

}  // namespace muster::detail
