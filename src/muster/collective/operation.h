#pragma once

// What a rank asks of its group: one collective operation, or one message, as a value.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "muster/base/dtype.h"
#include "muster/communicator.h"

namespace muster::detail {

enum class Collective : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kReduce,
  kAllToAll,
  kBarrier,
  kSend,
  kReceive,
};

/// The algorithm of a plan; kAuto leaves the choice to the measured table.
enum class Algorithm : uint8_t {
  kAuto,
  kRing,
  kHalvingDoubling,
  kDoubling,
  kExchange,
  kDirect,
  kHierarchical,
  kChain,
  kTree
};

const char* name_of(Collective collective);  // "all_reduce"
const char* name_of(ReduceOp op);            // "sum"
const char* name_of(Algorithm algorithm);    // "halving-doubling"

/// The inverse of name_of. Throws InvalidArgument that lists what there is.
Algorithm parse_algorithm(std::string_view name);

struct Operation {
  Collective collective = Collective::kBarrier;
  const void* in = nullptr;
  void* out = nullptr;  ///< the same as `in` where the operation is in place
  /// Elements of one rank's share: of the whole buffer for all-reduce, broadcast, reduce and messages; of
  /// what one rank brings or gets from another for reduce-scatter, all-gather and all-to-all.
  size_t count = 0;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int peer = 0;  ///< the root of a broadcast or reduce; the other side of a message

  size_t bytes() const { return count * size_of(dtype); }
  bool reduces() const {
    return collective == Collective::kAllReduce || collective == Collective::kReduceScatter ||
           collective == Collective::kReduce;
  }
  std::string to_string() const;  ///< "all_reduce(float32 x 1024, sum)"
};

}  // namespace muster::detail
