#pragma once

// Where parameters, or parts of them, lie in flat memory, and how the work on them is cut up.
//
//   parameter   a tensor that is trained
//   slice       a parameter, or the part of one that a shard of the model holds: it lies in one piece
//   range       a part of a slice: what is summed and updated in one go
//   chunk       one range, or several that are small: what one thread does at a time, so that a thousand
//               small parameters do not cost a thousand signals
//
//   const FlatLayout layout(parameters);                                        // all of them, whole
//   const FlatLayout shard(parameters, {{.parameter = 2, .begin = 0, .count = 512}});
//
// A pure value: the same parameters and slices give the same layout in every task.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "muster/base/dtype.h"
#include "muster/optim/update_rule.h"

namespace muster::detail {

struct ParameterInfo {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kFloat32;
  GroupRates group;

  size_t count() const;  ///< elements
  size_t bytes() const { return count() * size_of(dtype); }

  /// In what its gradients are summed and its state is kept: float64 for float64, else float32.
  DType state_dtype() const { return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

  /// 16-bit parameters are trained through a copy in float32.
  bool has_master() const { return size_of(dtype) < size_of(state_dtype()); }

  std::string to_string() const;  ///< "fc1.weight float32 [128, 512]"
  bool operator==(const ParameterInfo&) const = default;
};

/// A part of one parameter, in elements.
struct Slice {
  size_t parameter = 0;
  size_t begin = 0;
  size_t count = 0;
  bool operator==(const Slice&) const = default;
};

class FlatLayout {
 public:
  struct Range {
    size_t slice = 0;
    size_t begin = 0;  ///< in the slice, in elements
    size_t count = 0;
  };
  struct Chunk {
    size_t first = 0;  ///< of the ranges
    size_t ranges = 0;
  };

  /// All parameters, each whole: slice i is parameter i.
  explicit FlatLayout(const std::vector<ParameterInfo>& parameters);

  /// These slices, in this order.
  FlatLayout(std::vector<ParameterInfo> parameters, std::vector<Slice> slices);

  const std::vector<ParameterInfo>& parameters() const { return parameters_; }
  const std::vector<Slice>& slices() const { return slices_; }
  size_t size() const { return slices_.size(); }

  /// The parameter that a slice is of.
  const ParameterInfo& operator[](size_t slice) const { return parameters_[slices_[slice].parameter]; }

  /// Bytes of a slice's elements.
  size_t bytes(size_t slice) const { return slices_[slice].count * size_of((*this)[slice].dtype); }

  // In the parameters' buffer, in bytes. A gradient of everything has the same layout. Slices begin on cache
  // lines.
  size_t offset(size_t slice) const { return offsets_[slice]; }
  size_t offset(const Range& range) const;
  size_t bytes() const { return bytes_; }

  // In a buffer of the states' types: sums of gradients, masters, and each state of the optimizer have one.
  size_t state_offset(size_t slice) const { return state_offsets_[slice]; }
  size_t state_offset(const Range& range) const;
  size_t state_bytes() const { return state_bytes_; }

  /// In the order of the slices; a chunk's ranges have one state type.
  const std::vector<Range>& ranges() const { return ranges_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  std::span<const Range> ranges_of(const Chunk& chunk) const {
    return std::span(ranges_).subspan(chunk.first, chunk.ranges);
  }

  bool has_masters() const;

 private:
  void cut_into_chunks();

  std::vector<ParameterInfo> parameters_;
  std::vector<Slice> slices_;
  std::vector<size_t> offsets_;
  std::vector<size_t> state_offsets_;
  std::vector<Range> ranges_;
  std::vector<Chunk> chunks_;
  size_t bytes_ = 0;
  size_t state_bytes_ = 0;
};

}  // namespace muster::detail
