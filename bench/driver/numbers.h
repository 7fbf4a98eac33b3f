#pragma once

// Numbers as muster-bench reads and shows them: sizes as the user writes them, what ranks answer, statistics
// of samples, and figures in tables and in JSON. Pure functions.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace muster::detail::bench {

/// "8:256M" is 8, 16, 32, ... up to 256M; "64K,1M,25M" is just these; both may be mixed. K, M and G are
/// powers of 1024. In order, each once. Throws InvalidArgument.
std::vector<int64_t> parse_sizes(const std::string& text);

/// As parse_sizes reads it: "64K" where that is exact, else all digits: "1000".
std::string format_size(int64_t bytes);

/// "1 worker", "2 workers".
std::string count_of(size_t number, const std::string& what);

/// "nan" and "inf" too. Nothing when it is no number.
std::optional<double> parse_number(const std::string& text);

/// What follows in the answer of a rank: "ok 1 2.5". Nothing when it is not ok, or not all are numbers.
std::optional<std::vector<double>> parse_answer(const std::string& line);

/// The samples of all workers, from the answers of all ranks to "run" (bench/peers/timed_harness.h): a sample
/// is the time of one worker. Nothing when a worker's line is not of that form.
std::optional<std::vector<double>> parse_samples(const std::vector<std::string>& lines, int workers);

/// Whether all workers found all results right, from the answers to "verify". Nothing when a worker's line is
/// not of that form.
std::optional<bool> parse_verification(const std::vector<std::string>& lines, int workers);

/// The value below which `share` (0 to 1) of the samples lie, interpolated between neighbours. At least one
/// sample.
double percentile(std::vector<double> samples, double share);

/// As tables show them: with as many decimals as matter.
std::string format_microseconds(double value);
std::string format_ratio(double value);

/// With so many decimals, or "-".
std::string format_cell(std::optional<double> value, int decimals);

/// As JSON has them: what is beyond is noise. Microseconds have 3 decimals.
double rounded(double value, int decimals = 3);

}  // namespace muster::detail::bench
