#pragma once

// Where the parameters of a model lie in flat memory, and how the work on them is cut up.
//
//   parameter   a tensor that is trained; parameters stand in the order in which backward finishes them
//   chunk       a piece of one parameter: what one worker reduces and updates at a time
//   bucket      a run of chunks that travels between hosts at once
//
// A pure value: the same parameters give the same layout on every worker.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "muster/base/dtype.h"
#include "muster/optim/update_rule.h"

namespace muster::detail {

struct ParameterInfo {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  GroupRates group;

  size_t count() const;

  /// In what its gradients are summed and its state is kept: float64 for float64, else float32.
  DType state_dtype() const { return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

  /// 16-bit parameters are trained through a copy in float32.
  bool has_master() const { return size_of(dtype) < size_of(state_dtype()); }

  std::string to_string() const;  ///< "fc1.weight float32 [128, 512]"
  bool operator==(const ParameterInfo&) const = default;
};

class ParameterLayout {
 public:
  struct Chunk {
    size_t parameter = 0;
    size_t begin = 0;  // in elements of the parameter
    size_t count = 0;
    size_t bucket = 0;
  };
  struct Bucket {
    size_t first_chunk = 0;
    size_t chunks = 0;
    size_t offset = 0;  // in the bytes of a state buffer
    size_t count = 0;   // elements, with the gaps between parameters
    DType dtype = DType::kFloat32;
  };

  /// `bucket_bytes` is about the size of a bucket: they end with a chunk.
  ParameterLayout(std::vector<ParameterInfo> parameters, size_t bucket_bytes);

  const std::vector<ParameterInfo>& parameters() const { return parameters_; }
  size_t size() const { return parameters_.size(); }
  const ParameterInfo& operator[](size_t parameter) const { return parameters_[parameter]; }

  size_t offset(size_t parameter) const { return offsets_[parameter]; }  ///< in the parameters' buffer
  size_t bytes() const { return bytes_; }                                ///< of the parameters' buffer

  /// Sums of gradients, and each state of the optimizer, have a buffer of this size.
  size_t state_offset(size_t parameter) const { return state_offsets_[parameter]; }
  size_t state_bytes() const { return state_bytes_; }

  const std::vector<Chunk>& chunks() const { return chunks_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }

 private:
  void add_chunks(size_t parameter, size_t bucket_bytes);

  std::vector<ParameterInfo> parameters_;
  std::vector<size_t> offsets_;
  std::vector<size_t> state_offsets_;
  std::vector<Chunk> chunks_;
  std::vector<Bucket> buckets_;
  size_t bytes_ = 0;
  size_t state_bytes_ = 0;
};

}  // namespace muster::detail
