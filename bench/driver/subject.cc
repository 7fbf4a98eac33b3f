#include "bench/driver/subject.h"

#include <fmt/format.h>

#include "bench/driver/numbers.h"

namespace muster::detail::bench {

std::string SubjectCommand::name() const {
  return fmt::format("{} ({}), {}", of.subject, of.variant, count_of(static_cast<size_t>(ranks()), "rank"));
}

}  // namespace muster::detail::bench
