#pragma once

// What is shown of collectives: bandwidths by nccl-tests' formulas, the table and the lines of JSON. Pure
// values and functions.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/driver/kind.h"

namespace muster::detail::bench::collective {

/// A turn from the answers of all ranks (bench/peers/harness.h): each sample is that of the slowest rank, and
/// all must be right. Nothing when a line is not of that form.
std::optional<Turn> parse_answers(const std::vector<std::string>& lines);

/// Bus bandwidth is bytes / time times this: what a link must carry, whatever the number of ranks. As in
/// nccl-tests, doc/PERFORMANCE.md. 0 for a barrier.
double bus_factor(std::string_view collective, int ranks);

/// All that was measured of one number of ranks and one size. A variant that failed is missing.
struct Point {
  int ranks = 0;
  int64_t bytes = 0;
  std::vector<Result> results;
};

/// The fastest variant of a subject whose results were right; null when there is none.
const Result* best_of(const Point& point, std::string_view subject);

/// {"bench":"allreduce","subject":"openmpi","variant":"vader
/// cma","ranks":2,"bytes":8,"median_us":...,"p10_us":..., "p90_us":...,"verified":true,"repeated_us":...}
std::string to_json(const std::string& collective, const Point& point, const Result& result);

/// The table, a line for each point. Each subject is shown with its best variant, by a letter where it has
/// several, and with its time divided by that of the first subject: above 1, the first is faster.
class Table {
 public:
  /// `variants` in the order of the columns; those of a subject stand together.
  Table(std::string collective, const std::vector<Variant>& variants);

  /// What the letters mean, and the names of the columns.
  std::string head() const;
  /// Also a line "repeated", where the time of collectives in a row on data that nobody rewrote differs by
  /// more than 10 %.
  std::string row(const Point& point) const;

 private:
  struct Subject {
    std::string name;
    std::vector<std::string> variants;
  };

  std::string repeated(const Point& point) const;
  std::string cell(const Subject& subject, const Point& point) const;

  const std::string collective_;
  std::vector<Subject> subjects_;
};

}  // namespace muster::detail::bench::collective
