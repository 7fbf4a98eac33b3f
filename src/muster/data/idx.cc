#include "muster/idx.h"

#include <zlib.h>

#include <array>
#include <cerrno>
#include <memory>
#include <string>

#include "muster/base/error.h"

namespace muster {

using namespace detail;

namespace {

constexpr int64_t kMostValues = int64_t{1} << 40;

struct CloseGzip {
  void operator()(gzFile_s* file) const { gzclose(file); }
};

// Reads exactly what is asked for, or says what is missing.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    if (!file_) raise<SystemError>("{} can't be opened: {}", path_.string(), describe_errno(errno));
    gzbuffer(file_.get(), 1 << 18);
  }

  void read(uint8_t* out, int64_t count, const char* what) {
    int64_t done = 0;
    while (done < count) {
      const auto portion = static_cast<unsigned>(std::min<int64_t>(count - done, 1 << 28));
      const int size = gzread(file_.get(), out + done, portion);
      if (size < 0) fail_on_stream();
      if (size == 0) {
        fail_if_stream_is_broken();
        raise<DataLoss>("{} is truncated: it ends after {} of {} bytes of its {}", path_.string(), done,
                        count, what);
      }
      done += size;
    }
  }

  void expect_end() {
    uint8_t extra = 0;
    const int size = gzread(file_.get(), &extra, 1);
    if (size < 0) fail_on_stream();
    fail_if_stream_is_broken();
    if (size > 0) raise<DataLoss>("{} has bytes after the values that its header announces", path_.string());
  }

 private:
  [[noreturn]] void fail_on_stream() {
    int code = 0;
    const char* text = gzerror(file_.get(), &code);
    if (code == Z_ERRNO) raise<SystemError>("{} can't be read: {}", path_.string(), describe_errno(errno));
    raise<DataLoss>("{} is a corrupt gzip file: {}", path_.string(), text);
  }

  // At the end of a gzip stream that was cut off, zlib gives what there is and notes the error.
  void fail_if_stream_is_broken() {
    int code = 0;
    gzerror(file_.get(), &code);
    if (code == Z_BUF_ERROR) raise<DataLoss>("{} is truncated: its gzip stream does not end", path_.string());
    if (code != Z_OK && code != Z_STREAM_END) fail_on_stream();
  }

  const std::filesystem::path path_;
  std::unique_ptr<gzFile_s, CloseGzip> file_;
};

}  // namespace

IdxArray read_idx(const std::filesystem::path& file) {
  Reader reader(file);
  std::array<uint8_t, 4> magic{};
  reader.read(magic.data(), magic.size(), "header");
  if (magic[0] != 0 || magic[1] != 0) {
    raise<DataLoss>("{} is not an IDX file: it begins with the bytes {:02x} {:02x}, not 00 00", file.string(),
                    magic[0], magic[1]);
  }
  if (magic[2] != 0x08) {
    raise<DataLoss>("{} holds values of type 0x{:02x}; only unsigned bytes (0x08) are read", file.string(),
                    magic[2]);
  }
  if (magic[3] < 1 || magic[3] > 8) {
    raise<DataLoss>("{} announces {} dimensions; expected 1 to 8", file.string(), magic[3]);
  }
  IdxArray array;
  int64_t total = 1;
  for (int i = 0; i < magic[3]; ++i) {
    std::array<uint8_t, 4> bytes{};
    reader.read(bytes.data(), bytes.size(), "dimensions");
    const int64_t size = (int64_t{bytes[0]} << 24) | (bytes[1] << 16) | (bytes[2] << 8) | bytes[3];
    array.shape.push_back(size);
    if (size != 0 && total > kMostValues / size)
      raise<DataLoss>("{} announces an impossible size", file.string());
    total *= size;
  }
  // A corrupt header must not make us reserve what the file can't hold: grow as the bytes come.
  constexpr int64_t kPortion = 16 << 20;
  while (static_cast<int64_t>(array.values.size()) < total) {
    const auto begin = static_cast<int64_t>(array.values.size());
    const int64_t portion = std::min(kPortion, total - begin);
    array.values.resize(static_cast<size_t>(begin + portion));
    reader.read(array.values.data() + begin, portion, "values");
  }
  reader.expect_end();
  return array;
}

}  // namespace muster
