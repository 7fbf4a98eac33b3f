#include "muster/base/symbols.h"

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "muster/base/descriptor.h"

namespace muster::detail {
namespace {

// It names the file that was started, also when another has taken its place since.
constexpr const char* kThisProgram = "/proc/self/exe";

std::string file_name(const std::string& path) {
  std::error_code error;
  return (path == kThisProgram ? std::filesystem::read_symlink(path, error) : std::filesystem::path(path))
      .filename();
}

// Empty where the file is shorter.
template <typename T>
std::vector<T> read_array(int fd, uint64_t offset, uint64_t count) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return {};
  const auto size = static_cast<uint64_t>(status.st_size);
  if (offset > size || count > (size - offset) / sizeof(T)) return {};
  std::vector<T> values(count);
  const size_t bytes = count * sizeof(T);
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = pread(fd, reinterpret_cast<char*>(values.data()) + done, bytes - done,
                              static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return {};
    done += static_cast<size_t>(got);
  }
  return values;
}

std::string read_name(int fd, uint64_t offset) {
  std::string name;
  std::array<char, 256> piece{};
  for (;;) {
    const ssize_t got = pread(fd, piece.data(), piece.size(), static_cast<off_t>(offset + name.size()));
    if (got <= 0) return name;
    const size_t length = strnlen(piece.data(), static_cast<size_t>(got));
    name.append(piece.data(), length);
    if (length < static_cast<size_t>(got)) return name;
  }
}

// As people write it: strings by their short name.
std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  if (!text) return name;
  std::string readable = text.get();
  constexpr std::string_view kString =
      "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";
  for (size_t at = 0; (at = readable.find(kString, at)) != std::string::npos;)
    readable.replace(at, kString.size(), "std::string");
  return readable;
}

}  // namespace

class Symbols::File {
 public:
  explicit File(const dl_phdr_info& info)
      : path_(*info.dlpi_name == '\0' ? kThisProgram : info.dlpi_name), base_(info.dlpi_addr) {
    for (size_t i = 0; i < info.dlpi_phnum; ++i) {
      const auto& part = info.dlpi_phdr[i];
      if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
      begin_ = std::min<uint64_t>(begin_, base_ + part.p_vaddr);
      end_ = std::max<uint64_t>(end_, base_ + part.p_vaddr + part.p_memsz);
    }
  }

  bool contains(uint64_t address) const { return begin_ <= address && address < end_; }

  std::string describe(uint64_t address) {
    if (!was_read_) read();
    const uint64_t offset = address - base_;
    std::string place = fmt::format("{}+{:#x}", name_, offset);
    const auto after = std::ranges::upper_bound(functions_, offset, {}, &Function::begin);
    if (after == functions_.begin()) return place;
    const Function& function = *std::prev(after);
    if (offset - function.begin >= function.size) return place;
    return fmt::format("{}+{:#x} ({})", demangled(read_name(fd_.get(), function.name)),
                       offset - function.begin, place);
  }

 private:
  struct Function {
    uint64_t begin = 0;
    uint64_t size = 0;
    uint64_t name = 0;  // where it is in the file
  };

  void read() {
    was_read_ = true;
    name_ = file_name(path_);
    fd_ = Descriptor(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd_) return;
    const auto header = read_array<ElfW(Ehdr)>(fd_.get(), 0, 1);
    if (header.empty() || memcmp(header[0].e_ident, ELFMAG, SELFMAG) != 0 ||
        header[0].e_shentsize != sizeof(ElfW(Shdr)))
      return;
    const auto sections = read_array<ElfW(Shdr)>(fd_.get(), header[0].e_shoff, header[0].e_shnum);
    for (const uint32_t kind : {SHT_SYMTAB, SHT_DYNSYM}) {
      const auto table = std::ranges::find(sections, kind, &ElfW(Shdr)::sh_type);
      if (table == sections.end() || table->sh_link >= sections.size()) continue;
      return read_functions(*table, sections[table->sh_link].sh_offset);
    }
  }

  void read_functions(const ElfW(Shdr) & table, uint64_t names) {
    for (const auto& symbol :
         read_array<ElfW(Sym)>(fd_.get(), table.sh_offset, table.sh_size / sizeof(ElfW(Sym)))) {
      const int type = symbol.st_info & 0xf;
      if ((type == STT_FUNC || type == STT_GNU_IFUNC) && symbol.st_shndx != SHN_UNDEF)
        functions_.push_back({symbol.st_value, symbol.st_size, names + symbol.st_name});
    }
    std::ranges::stable_sort(functions_, {}, &Function::begin);
  }

  std::string path_;
  std::string name_;
  uint64_t base_ = 0;
  uint64_t begin_ = UINT64_MAX;
  uint64_t end_ = 0;
  bool was_read_ = false;
  Descriptor fd_;
  std::vector<Function> functions_;
};

Symbols::Symbols() {
  const auto add = [](dl_phdr_info* info, size_t, void* files) {
    static_cast<std::vector<File>*>(files)->emplace_back(*info);
    return 0;
  };
  dl_iterate_phdr(add, &files_);
}

Symbols::~Symbols() = default;

std::string Symbols::describe(const void* address) {
  const auto number = reinterpret_cast<uint64_t>(address);
  const auto file = std::ranges::find_if(files_, [&](const File& one) { return one.contains(number); });
  return file == files_.end() ? fmt::format("{:#x}, which is in no file", number) : file->describe(number);
}

}  // namespace muster::detail
