#pragma once

// Small functions over text: near matches for error messages, splitting, numbers and durations read strictly.
// Pure; any thread may call them.

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::detail {

/// The number of single-character edits (insert, delete, replace, swap of neighbours) between two words.
int edit_distance(std::string_view a, std::string_view b);

/// "; did you mean X?" for the nearest of `known`, or "" when nothing is near.
std::string suggestion(std::string_view word, const std::vector<std::string>& known);

/// As much of a line as fits into `columns` of a terminal. Escape sequences take none and are all kept, so
/// that a colour ends; a character of UTF-8 takes one.
std::string first_columns(std::string_view line, size_t columns);

/// The word as a shell takes it for one: in quotes, unless it needs none.
std::string shell_quoted(std::string_view word);

std::vector<std::string> split(std::string_view text, char separator);

/// A whole decimal integer, nothing before or after it.
std::optional<long long> parse_integer(std::string_view text);

/// "0.9", "1e-3"; finite. Empty when there is anything else.
std::optional<double> parse_real(std::string_view text);

/// "250ms", "10s", "5m", "1h"; a bare number is seconds.
std::optional<std::chrono::milliseconds> parse_duration(std::string_view text);
std::string format_duration(std::chrono::milliseconds duration);

/// "4096", "64K", "25M", "1G": powers of 1024.
std::optional<size_t> parse_bytes(std::string_view text);

/// "64 KiB", "1.5 GiB", "12 B".
std::string format_bytes(size_t bytes);

}  // namespace muster::detail
