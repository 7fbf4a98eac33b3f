#pragma once

// Tells that somebody wrote to memory that is there for reading only, instead of letting the process die of
// it. The parameters of a server are such memory: a worker computes with them where they lie, and its program
// may change them by mistake. Whoever owns the memory asks for first_write() when it is safe to throw.
//
//   const WriteTrap trap(parameters, bytes);      // mapped with PROT_READ and MAP_PRIVATE
//   ...
//   if (trap.first_write() != nullptr) throw InvalidArgument("...");
//
// The first write makes all of the memory writable, and it goes to a copy of its page that nobody else sees;
// what is then written or read there is of no use. The first trap installs a handler for SIGSEGV, which hands
// every other fault on to the handler that was there before.
//
// Any thread may call first_write(). Making one throws SystemError when there are too many.

#include <cstddef>

namespace muster::detail {

class WriteTrap {
 public:
  /// The memory must stay mapped as long as this lives. It begins and ends with a page.
  WriteTrap(std::byte* begin, size_t bytes);
  ~WriteTrap();
  WriteTrap(const WriteTrap&) = delete;
  WriteTrap& operator=(const WriteTrap&) = delete;

  /// Where somebody wrote first; nullptr when nobody has.
  const std::byte* first_write() const;

 private:
  size_t slot_ = 0;
};

}  // namespace muster::detail
