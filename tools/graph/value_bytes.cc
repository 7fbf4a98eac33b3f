#include "graph/value_bytes.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "muster/base/text.h"
#include "muster/graph/graph_proto.h"

namespace muster::detail {

ValueBytes ValueBytes::of(const OutputInfo& info) {
  ValueBytes bytes;
  const auto kind = info.type ? info.type->kind() : c10::TypeKind::AnyType;
  if (kind == c10::TypeKind::IntType || kind == c10::TypeKind::FloatType) return ValueBytes(8);
  if (kind == c10::TypeKind::BoolType) return ValueBytes(1);
  if (kind == c10::TypeKind::NoneType) return bytes;
  if (!info.dtype || !info.shape.known()) {
    bytes.unknown_ = 1;
    return bytes;
  }
  bytes.coefficients_ = {static_cast<int64_t>(c10::elementSize(*info.dtype))};
  for (const auto& size : info.shape.sizes()) {
    std::vector<int64_t> product(bytes.coefficients_.size() + (size.batches != 0 ? 1 : 0), 0);
    for (size_t i = 0; i < bytes.coefficients_.size(); ++i) {
      product[i] += bytes.coefficients_[i] * size.fixed;
      if (size.batches != 0) product[i + 1] += bytes.coefficients_[i] * size.batches;
    }
    bytes.coefficients_ = std::move(product);
  }
  return bytes;
}

ValueBytes& ValueBytes::operator+=(const ValueBytes& other) {
  coefficients_.resize(std::max(coefficients_.size(), other.coefficients_.size()));
  for (size_t i = 0; i < other.coefficients_.size(); ++i) coefficients_[i] += other.coefficients_[i];
  unknown_ += other.unknown_;
  return *this;
}

double ValueBytes::at(int64_t batch) const {
  double sum = 0;
  for (size_t i = coefficients_.size(); i-- > 0;)
    sum = sum * static_cast<double>(batch) + static_cast<double>(coefficients_[i]);
  return sum;
}

std::string ValueBytes::to_string(std::optional<int64_t> batch) const {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : " + ") + part; };
  const auto bytes = [](double value) { return format_bytes(static_cast<size_t>(std::max(value, 0.0))); };
  if (batch) {
    if (at(*batch) != 0) add(bytes(at(*batch)));
  } else {
    for (size_t i = coefficients_.size(); i-- > 0;) {
      if (coefficients_[i] == 0) continue;
      const std::string power = i == 0 ? "" : i == 1 ? "N x " : fmt::format("N^{} x ", i);
      add(power + bytes(static_cast<double>(coefficients_[i])));
    }
  }
  if (unknown_ > 0) add("?");
  return text.empty() ? "0 B" : text;
}

std::string describe(const OutputInfo& info) {
  const bool is_tensor = !info.type || info.type->kind() == c10::TypeKind::TensorType;
  if (!is_tensor) return info.type->annotation_str();
  return fmt::format("{} {}", info.dtype ? dtype_name(*info.dtype) : "?", info.shape.to_string());
}

namespace {

// The length of the character of UTF-8 that the text begins with; 0: it begins with none.
size_t character_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  const size_t length = first < 0x80   ? 1
                        : first < 0xc2 ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
  if (length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  }
  const auto second = length > 1 ? static_cast<unsigned char>(text[1]) : 0;
  // Characters that a shorter form has, halves of pairs, and what is beyond the last.
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
      (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f))
    return 0;
  return length;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t length = character_length(text);
    const bool is_control =
        length == 1 && (static_cast<unsigned char>(text.front()) < 0x20 || text.front() == 0x7f);
    result += length == 0 || is_control ? std::string_view("?") : text.substr(0, length);
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return result;
}

}  // namespace muster::detail
