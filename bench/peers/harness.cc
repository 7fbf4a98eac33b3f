#include "bench/peers/harness.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <sstream>
#include <vector>

#include "bench/peers/conversation.h"

namespace muster::detail::bench {
namespace {

constexpr std::array kNames = {"allreduce", "reducescatter", "allgather", "broadcast",
                               "reduce",    "alltoall",      "barrier"};

// The value of an element is its index modulo kPeriod, plus kStep for each rank: distinct for each rank, and
// up to 128 ranks every sum is below 2^24. The period is prime, so that blocks of any usual size are out of
// step.
constexpr size_t kPeriod = 509;
constexpr size_t kStep = 521;
constexpr float kNotWritten = -1;

using Clock = std::chrono::steady_clock;

/// The numbers (index modulo kPeriod) * scale + offset.
struct Pattern {
  size_t scale = 1;
  size_t offset = 0;

  static Pattern of_rank(int rank) { return {.offset = kStep * static_cast<size_t>(rank)}; }
  static Pattern of_sum(int ranks) {
    const auto n = static_cast<size_t>(ranks);
    return {.scale = n, .offset = kStep * n * (n - 1) / 2};
  }
};

// `first` is the index of the first element in the pattern. Copies of one period, which stays in the
// first-level cache: about as fast as memory takes it, and by ordinary stores, as a kernel writes a gradient.
void write_pattern(std::span<float> buffer, size_t first, Pattern pattern) {
  std::array<float, kPeriod> period{};
  for (size_t i = 0; i < std::min(kPeriod, buffer.size()); ++i)
    period[i] = static_cast<float>((first + i) % kPeriod * pattern.scale + pattern.offset);
  for (size_t begin = 0; begin < buffer.size(); begin += kPeriod) {
    const size_t count = std::min(kPeriod, buffer.size() - begin);
    std::memcpy(buffer.data() + begin, period.data(), count * sizeof(float));
  }
}

bool has_pattern(std::span<const float> buffer, size_t first, Pattern pattern) {
  size_t index = first % kPeriod;
  bool equal = true;
  for (const float element : buffer) {
    equal &= element == static_cast<float>(index * pattern.scale + pattern.offset);
    if (++index == kPeriod) index = 0;
  }
  return equal;
}

struct Request {
  bool rewrites = true;  // before each collective
  Collective collective = Collective::kBarrier;
  size_t bytes = 0;
  int warmup = 0;
  int samples = 0;
  int batch = 1;
};

Request parse(const std::string& line) {
  std::istringstream words(line);
  std::string verb;
  std::string collective;
  Request request;
  words >> verb >> collective >> request.bytes >> request.warmup >> request.samples >> request.batch;
  const auto found = std::find(kNames.begin(), kNames.end(), collective);
  if (!words || (verb != "run" && verb != "repeat") || found == kNames.end() || request.batch < 1)
    throw std::invalid_argument("not a command: " + line);
  request.collective = static_cast<Collective>(found - kNames.begin());
  request.rewrites = verb == "run" && request.collective != Collective::kBarrier;
  return request;
}

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// What is measured of nothing: reading the clock, which takes a tenth of the smallest collective.
double cost_of_clock() {
  std::array<double, 1001> costs{};
  for (double& cost : costs) cost = microseconds_since(Clock::now());
  std::nth_element(costs.begin(), costs.begin() + costs.size() / 2, costs.end());
  return costs[costs.size() / 2];
}

class Harness {
 public:
  explicit Harness(Subject& subject) : subject_(subject), rank_(subject.rank()), size_(subject.size()) {}

  std::string answer(const std::string& line) {
    try {
      return measure(parse(line));
    } catch (const NotOffered& reason) {
      return std::string("skip ") + reason.what();
    }
  }

 private:
  struct Prepared {
    Collective collective;
    size_t bytes;
  };

  std::string measure(const Request& request) {
    if (!prepared_ || prepared_->collective != request.collective || prepared_->bytes != request.bytes) {
      prepared_.reset();
      buffers_ = subject_.prepare(request.collective, request.bytes);
      prepared_ = {request.collective, request.bytes};
    }
    bool right = run_and_verify(request.collective);
    std::vector<double> samples;
    if (request.rewrites) {
      for (int i = 0; i < request.warmup; ++i) rewrite_and_time();
      for (int i = 0; i < request.samples; ++i) samples.push_back(sample_rewritten(request.batch));
    } else {
      for (const auto buffer : {buffers_.in, buffers_.out}) std::fill(buffer.begin(), buffer.end(), 0.0F);
      subject_.barrier();
      for (int i = 0; i < request.warmup; ++i) subject_.run();
      for (int i = 0; i < request.samples; ++i) samples.push_back(sample_repeated(request.batch));
    }
    right &= run_and_verify(request.collective);

    std::ostringstream text;
    text << "ok " << right;
    for (const double microseconds : samples) text << ' ' << microseconds;
    return text.str();
  }

  double sample_repeated(int batch) {
    subject_.barrier();
    const auto start = Clock::now();
    for (int i = 0; i < batch; ++i) subject_.run();
    return microseconds_since(start) / batch;
  }

  double sample_rewritten(int batch) {
    double sum = 0;
    for (int i = 0; i < batch; ++i) sum += rewrite_and_time();
    return sum / batch;
  }

  double rewrite_and_time() {
    write_pattern(buffers_.in, 0, Pattern::of_rank(rank_));
    subject_.barrier();
    const auto start = Clock::now();
    subject_.run();
    return std::max(microseconds_since(start) - clock_, 0.0);
  }

  bool run_and_verify(Collective collective) {
    std::fill(buffers_.out.begin(), buffers_.out.end(), kNotWritten);
    if (collective != Collective::kBroadcast || rank_ == 0)
      write_pattern(buffers_.in, 0, Pattern::of_rank(rank_));
    subject_.barrier();
    subject_.run();
    return verify(collective);
  }

  bool verify(Collective collective) const {
    const std::span<const float> out = buffers_.out;
    const size_t block = out.size() / static_cast<size_t>(size_);
    switch (collective) {
      case Collective::kAllReduce:
        return has_pattern(out, 0, Pattern::of_sum(size_));
      case Collective::kReduce:
        return rank_ != 0 || has_pattern(out, 0, Pattern::of_sum(size_));
      case Collective::kBroadcast:
        return has_pattern(out, 0, Pattern::of_rank(0));
      case Collective::kReduceScatter:
        return has_pattern(out, static_cast<size_t>(rank_) * out.size(), Pattern::of_sum(size_));
      case Collective::kAllGather:
      case Collective::kAllToAll:
        for (int from = 0; from < size_; ++from) {
          const size_t first = collective == Collective::kAllToAll ? static_cast<size_t>(rank_) * block : 0;
          if (!has_pattern(out.subspan(static_cast<size_t>(from) * block, block), first,
                           Pattern::of_rank(from)))
            return false;
        }
        return true;
      case Collective::kBarrier:
        return true;
    }
    return false;
  }

  Subject& subject_;
  const int rank_;
  const int size_;
  const double clock_ = cost_of_clock();
  std::optional<Prepared> prepared_;
  Buffers buffers_;
};

}  // namespace

Shape shape_of(Collective collective, size_t bytes, int ranks) {
  const size_t all = bytes / sizeof(float);
  const size_t block = all / static_cast<size_t>(ranks);
  const auto whole = [&](size_t unit) {
    if (bytes % unit != 0)
      throw std::invalid_argument(std::to_string(bytes) + " bytes are not a multiple of " +
                                  std::to_string(unit));
  };
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce:
      whole(sizeof(float));
      return {.in = all, .out = all, .in_place = true};
    case Collective::kReduceScatter:
      whole(sizeof(float) * static_cast<size_t>(ranks));
      return {.in = all, .out = block};
    case Collective::kAllGather:
      whole(sizeof(float) * static_cast<size_t>(ranks));
      return {.in = block, .out = all};
    case Collective::kAllToAll:
      whole(sizeof(float) * static_cast<size_t>(ranks));
      return {.in = all, .out = all};
    case Collective::kBarrier:
      return {};
  }
  return {};
}

void serve(Subject& subject, const std::string& directory) {
  Harness harness(subject);
  converse(directory, subject.rank(), [&](const std::string& line) { return harness.answer(line); });
}

}  // namespace muster::detail::bench
