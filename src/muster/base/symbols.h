#pragma once

// Names what is at an address of this process's code: the function, the file that it was loaded from, and the
// offset there, as addr2line and objdump want it.
//
//   Symbols symbols;
//   symbols.describe(address);  // "muster::Job::barrier(...)+0x1f (mnist+0x5a1f)", "libc.so.6+0x85d36"
//
// The names are read from the symbol tables of the files themselves: .symtab, which also has static functions
// and needs no -rdynamic, or .dynsym where a file was stripped of it.
//
// Of one thread. It keeps the tables that it has read, and knows the libraries that were loaded when it was
// made. A file that can't be read has no names, and nothing is thrown for it. It calls neither dladdr() nor
// anything else that waits for a dlopen() in another thread.

#include <string>
#include <vector>

namespace muster::detail {

class Symbols {
 public:
  Symbols();
  ~Symbols();
  Symbols(const Symbols&) = delete;
  Symbols& operator=(const Symbols&) = delete;

  std::string describe(const void* address);

 private:
  class File;

  std::vector<File> files_;
};

}  // namespace muster::detail
