#include "graph/timetable_text.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace muster::detail {

namespace {

// Times are compared as whole numbers of this part of a unit.
constexpr double kParts = 1000;

// How the rows are drawn.
struct Scale {
  double unit = 1;       // of time
  size_t units = 0;      // that the whole timetable takes
  size_t width = 1;      // characters of a unit
  bool is_exact = true;  // all passes are whole numbers of units
};

Scale scale_of(const PipelineTimetable& table, size_t columns) {
  int64_t common = 0;
  double shortest = table.duration;
  size_t micro_batches = 0;
  for (const auto& passes : table.stages) {
    for (const auto& pass : passes) {
      const double time = pass.end - pass.start;
      common = std::gcd(common, std::llround(time * kParts));
      if (time > 0) shortest = std::min(shortest, time);
      micro_batches = std::max(micro_batches, pass.micro_batch + 1);
    }
  }
  Scale scale;
  scale.unit = std::max<double>(static_cast<double>(common) / kParts, 1 / kParts);
  // A pass of very many units would push all others off the screen.
  constexpr double kMostUnits = 4;
  if (shortest / scale.unit > kMostUnits) {
    scale.unit = shortest;
    scale.is_exact = false;
  }
  scale.units = static_cast<size_t>(std::max<long long>(std::llround(table.duration / scale.unit), 1));
  const size_t wide = fmt::formatted_size("{}", micro_batches - 1) + 2;  // "F12 "
  if (scale.units * wide <= columns) scale.width = wide;
  return scale;
}

char letter_of(PassKind kind) {
  constexpr char kLetters[] = {'F', 'B', 'W'};
  return kLetters[static_cast<size_t>(kind)];
}

std::string row_of(const std::vector<PipelinePass>& passes, const Scale& scale) {
  std::string row;
  for (size_t i = 0; i < scale.units; ++i) row += '.' + std::string(scale.width - 1, ' ');
  for (const auto& pass : passes) {
    const auto at = [&](double time) {
      return static_cast<size_t>(std::llround(time / scale.unit)) * scale.width;
    };
    const size_t first = at(pass.start);
    const size_t count = std::min(at(pass.end), row.size()) - std::min(first, row.size());
    if (count == 0) continue;
    if (scale.width == 1) {
      const auto number = static_cast<int>(pass.micro_batch);
      const char character = pass.kind == PassKind::kForward    ? static_cast<char>('0' + number % 10)
                             : pass.kind == PassKind::kBackward ? static_cast<char>('a' + number % 26)
                                                                : 'W';
      row.replace(first, count, count, character);
      continue;
    }
    std::string text = fmt::format("{}{}", letter_of(pass.kind), pass.micro_batch);
    if (text.size() + 1 < count && count > scale.width) text.append(count - 1 - text.size(), '-');
    text.resize(count, ' ');
    row.replace(first, count, text);
  }
  return row;
}

std::string percent(double share) {
  return fmt::format("{:.1f} %", 100 * std::max(share, 0.0));
}

size_t micro_batches_of(const PipelineTimetable& table) {
  size_t count = 0;
  for (const auto& pass : table.stages.front()) count += pass.kind == PassKind::kForward ? 1 : 0;
  return count;
}

std::vector<size_t> held_of(const PipelineTimetable& table) {
  std::vector<size_t> held;
  for (size_t stage = 0; stage < table.stages.size(); ++stage) held.push_back(table.most_held(stage));
  return held;
}

std::string number(double value) {
  return fmt::format("{:g}", std::round(value * kParts) / kParts);
}

}  // namespace

std::string_view name_of(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::kGPipe:
      return "gpipe";
    case PipelineSchedule::k1F1B:
      return "1f1b";
    case PipelineSchedule::kZeroBubble:
      break;
  }
  return "zero-bubble";
}

std::string timetable_text(const PipelineTimetable& table, PipelineSchedule schedule, size_t columns) {
  const size_t stages = table.stages.size();
  const size_t name_width = fmt::formatted_size("stage {}  ", stages - 1);
  constexpr size_t kLeastColumns = 20;
  const size_t room = std::max(columns, name_width + kLeastColumns) - name_width;
  const Scale scale = scale_of(table, room);
  const bool has_fillers = schedule == PipelineSchedule::kZeroBubble;
  std::string text =
      fmt::format("{}, {} stages, {} micro-batches\n", name_of(schedule), stages, micro_batches_of(table));
  std::vector<std::string> rows;
  for (const auto& passes : table.stages) rows.push_back(row_of(passes, scale));
  for (size_t first = 0; first < rows.front().size(); first += room) {
    if (first > 0) text += fmt::format("from {}:\n", number(static_cast<double>(first) * scale.unit));
    for (size_t stage = 0; stage < stages; ++stage) {
      std::string row = rows[stage].substr(first, room);
      row.erase(row.find_last_not_of(' ') + 1);
      text += fmt::format("{:<{}}{}\n", fmt::format("stage {}", stage), name_width, row);
    }
  }
  text += scale.width > 1
              ? fmt::format("F, B: forward and backward pass of a micro-batch{}; a column is {} of time{}\n",
                            has_fillers ? ", W: the gradients of parameters" : "", number(scale.unit),
                            scale.is_exact ? "" : ", rounded")
              : fmt::format(
                    "0 1 2: forward, a b c: backward pass of a micro-batch{}; a column is {} of "
                    "time{}\n",
                    has_fillers ? ", W: the gradients of parameters" : "", number(scale.unit),
                    scale.is_exact ? "" : ", rounded");
  text += fmt::format("time {}, bubble {}; (p - 1) / (m + p - 1) is {}\n", number(table.duration),
                      percent(table.bubble()), percent(bubble_by_formula(stages, micro_batches_of(table))));
  text += fmt::format("micro-batches held at most: {}\n", fmt::join(held_of(table), ", "));
  return text;
}

std::string comparison_text(const std::vector<ComparedTimetable>& tables) {
  std::string text = fmt::format("{:<12} {:>8}  {:>7}  {}\n", "schedule", "time", "bubble",
                                 "micro-batches held at most, by stage");
  for (const auto& [schedule, table] : tables)
    text += fmt::format("{:<12} {:>8}  {:>7}  {}\n", name_of(schedule), number(table.duration),
                        percent(table.bubble()), fmt::join(held_of(table), ", "));
  return text;
}

}  // namespace muster::detail
