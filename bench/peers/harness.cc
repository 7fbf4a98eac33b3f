#include "bench/peers/harness.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <sstream>
#include <vector>

#include "bench/peers/conversation.h"

namespace muster::bench {
namespace {

constexpr std::array kNames = {"allreduce", "reducescatter", "allgather", "broadcast",
                               "reduce",    "alltoall",      "barrier"};

// The value of an element is its index modulo kPeriod, plus kStep for each rank: distinct for each rank, and
// up to 128 ranks every sum is below 2^24. The period is prime, so that blocks of any usual size are out of
// step.
constexpr size_t kPeriod = 509;
constexpr size_t kStep = 521;
constexpr float kNotWritten = -1;

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

// `first` is the index of the first element in the pattern.
void write_pattern(std::span<float> buffer, size_t first, Pattern pattern) {
  size_t index = first % kPeriod;
  for (float& element : buffer) {
    element = static_cast<float>(index * pattern.scale + pattern.offset);
    if (++index == kPeriod) index = 0;
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
  if (!words || verb != "run" || found == kNames.end() || request.batch < 1)
    throw std::invalid_argument("not a command: " + line);
  request.collective = static_cast<Collective>(found - kNames.begin());
  return request;
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
    for (const auto buffer : {buffers_.in, buffers_.out}) std::fill(buffer.begin(), buffer.end(), 0.0F);
    subject_.barrier();
    for (int i = 0; i < request.warmup; ++i) subject_.run();
    std::vector<double> samples;
    for (int i = 0; i < request.samples; ++i) samples.push_back(sample(request.batch));
    right &= run_and_verify(request.collective);

    std::ostringstream text;
    text << "ok " << right;
    for (const double microseconds : samples) text << ' ' << microseconds;
    return text.str();
  }

  double sample(int batch) {
    subject_.barrier();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < batch; ++i) subject_.run();
    const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start;
    return elapsed.count() / batch;
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

}  // namespace muster::bench
