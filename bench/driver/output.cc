#include "bench/driver/output.h"

#include <fmt/format.h>

#include "bench/driver/running_subject.h"
#include "muster/base/error.h"

namespace muster::detail::bench {
namespace {

constexpr int kProgressSteps = 1000;

std::ofstream open_for_writing(const std::string& flag, const std::string& path) {
  std::ofstream file(path);
  if (!file) raise<SystemError>("{} {}: the file can't be written: {}", flag, path, describe_errno(errno));
  return file;
}

}  // namespace

Output::Output(ProgressStyle style, Files files)
    : progress_(style, kProgressSteps), files_(std::move(files)) {
  if (!files_.json.empty()) json_ = open_for_writing("--json", files_.json);
  if (!files_.plot.empty()) plot_ = open_for_writing("--plot", files_.plot);
}

void Output::notice(const std::string& text) {
  progress_.finish();
  fmt::print(stderr, "muster: {}\n", text);
}

void Output::progress(double share, const std::string& text) {
  progress_.update(static_cast<int64_t>(share * kProgressSteps), text);
}

void Output::print(const std::string& text) {
  progress_.finish();
  fmt::print("{}", text);
  std::fflush(stdout);
}

void Output::write_json(const std::string& line) {
  json_ << line << '\n' << std::flush;
}

int Output::finish(const std::function<bool()>& measure, const std::function<std::string()>& plot) {
  try {
    const bool all_well = measure();
    progress_.finish();
    if (plot_.is_open()) plot_ << plot() << std::flush;
    if (json_.is_open() && !json_) raise<SystemError>("--json {}: writing failed", files_.json);
    if (plot_.is_open() && !plot_) raise<SystemError>("--plot {}: writing failed", files_.plot);
    return all_well ? 0 : 1;
  } catch (const Interrupted& interrupted) {
    notice(interrupted.what());
    return 128 + interrupted.signal();
  }
}

}  // namespace muster::detail::bench
