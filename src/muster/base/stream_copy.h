#pragma once

#include <cstddef>

namespace muster {

/// As memcpy, past the caches: for what is large and will not be read soon. The destination's lines are not
/// fetched first, which saves a third of the memory traffic.
void stream_copy(void* destination, const void* source, size_t bytes);

}  // namespace muster
