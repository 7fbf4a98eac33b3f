#pragma once

// What `muster bench` says: sizes as the user writes them, statistics of samples, bandwidths by nccl-tests'
// formulas, the table and the lines of JSON. Pure values and functions.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

/// allreduce, reducescatter, allgather, broadcast, reduce, alltoall, barrier.
const std::vector<std::string>& bench_collectives();

/// "8:256M" is 8, 16, 32, ... up to 256M; "64K,1M,25M" is just these; both may be mixed. K, M and G are
/// powers of 1024. In order, each once. Throws InvalidArgument.
std::vector<int64_t> parse_sizes(const std::string& text);

/// As parse_sizes reads it: "64K" where that is exact, else all digits: "1000".
std::string format_size(int64_t bytes);

/// Whether one buffer is both input and output. Where there are two, one of them has a block for each rank.
bool is_in_place(std::string_view collective);

/// `bytes` rounded up to whole float32 elements, the same number for every rank where each has a block of its
/// own.
int64_t round_up(std::string_view collective, int64_t bytes, int ranks);

/// The value below which `share` (0 to 1) of the samples lie, interpolated between neighbours. At least one
/// sample.
double percentile(std::vector<double> samples, double share);

/// As tables show them: with as many decimals as matter.
std::string format_microseconds(double value);
std::string format_ratio(double value);

/// To the nanosecond, as JSON has them: what is beyond is noise.
double round_microseconds(double value);

/// Bus bandwidth is bytes / time times this: what a link must carry, whatever the number of ranks. As in
/// nccl-tests, doc/PERFORMANCE.md. 0 for a barrier.
double bus_factor(std::string_view collective, int ranks);

/// One variant of a subject, as the table and the plot name it.
struct BenchVariant {
  std::string subject;
  std::string variant;

  bool operator==(const BenchVariant&) const = default;
};

/// "openmpi (tcp), 2 ranks"
std::string describe(const BenchVariant& of, size_t ranks);

/// The samples of one variant, in microseconds; each is that of the slowest rank.
struct BenchResult {
  BenchVariant of;
  double median_us = 0;
  double p10_us = 0;
  double p90_us = 0;
  bool verified = false;  ///< every element on every rank, every time
};

/// All that was measured of one number of ranks and one size. A variant that failed is missing.
struct BenchPoint {
  int ranks = 0;
  int64_t bytes = 0;
  std::vector<BenchResult> results;
};

/// The fastest variant of a subject whose results were right; null when there is none.
const BenchResult* best_of(const BenchPoint& point, std::string_view subject);

/// {"bench":"allreduce","subject":"openmpi","variant":"vader
/// cma","ranks":2,"bytes":8,"median_us":...,"p10_us":..., "p90_us":...,"verified":true}
std::string to_json(const std::string& collective, const BenchPoint& point, const BenchResult& result);

/// The table, a line for each point. Each subject is shown with its best variant, by a letter where it has
/// several, and with its time divided by that of the first subject: above 1, the first is faster.
class BenchTable {
 public:
  /// `variants` in the order of the columns; those of a subject stand together.
  BenchTable(std::string collective, const std::vector<BenchVariant>& variants);

  /// What the letters mean, and the names of the columns.
  std::string head() const;
  std::string row(const BenchPoint& point) const;

 private:
  struct Subject {
    std::string name;
    std::vector<std::string> variants;
  };

  std::string cell(const Subject& subject, const BenchPoint& point) const;

  const std::string collective_;
  std::vector<Subject> subjects_;
};

}  // namespace muster
