#pragma once

// IDX files: the format in which MNIST is published. Two zero bytes, a type (0x08: unsigned bytes), the
// number of dimensions, each dimension as a big-endian 32-bit number, then the values in row-major order.
// Read plain or gzip'd.

#include <cstdint>
#include <filesystem>
#include <vector>

namespace muster {

struct IdxArray {
  std::vector<int64_t> shape;
  std::vector<uint8_t> values;
};

/// Throws DataLoss, naming the file and what is wrong, for a file that is truncated, corrupt, too long, or
/// not IDX of bytes; SystemError when it can't be opened.
IdxArray read_idx(const std::filesystem::path& file);

}  // namespace muster
