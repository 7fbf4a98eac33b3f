#include "graph/value_bytes.h"

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

OutputInfo tensor(std::optional<at::ScalarType> dtype, const Shape& shape) {
  return {.type = c10::TensorType::get(), .dtype = dtype, .shape = shape};
}

TEST(ValueBytes, SizesGrowWithTheBatch) {
  EXPECT_EQ(ValueBytes::of(tensor(at::kFloat, {10, 784})).to_string(), "30.6 KiB");
  EXPECT_EQ(ValueBytes::of(tensor(at::kFloat, {kBatch, 512})).to_string(), "N x 2 KiB");
  EXPECT_EQ(ValueBytes::of(tensor(at::kFloat, {kBatch, 512})).to_string(64), "128 KiB");
  EXPECT_EQ(ValueBytes::of(tensor(at::kLong, {kBatch, kBatch})).to_string(), "N^2 x 8 B");
  EXPECT_EQ(
      ValueBytes::of(tensor(at::kBool, Shape(std::vector<Size>{{.fixed = 1, .batches = 2}}))).to_string(),
      "N x 2 B + 1 B");
  EXPECT_EQ(ValueBytes::of(tensor(at::kFloat, {0, 3})).to_string(), "0 B");
}

TEST(ValueBytes, WhatIsNotKnownIsSaid) {
  EXPECT_EQ(ValueBytes::of(tensor(at::kFloat, Shape())).to_string(), "?");
  EXPECT_EQ(ValueBytes::of(tensor(std::nullopt, {2})).to_string(64), "?");
  EXPECT_EQ(ValueBytes::of({.type = c10::IntType::get()}).to_string(), "8 B");
  EXPECT_EQ(ValueBytes::of({.type = c10::NoneType::get()}).to_string(), "0 B");
  EXPECT_EQ(describe(tensor(at::kFloat, {kBatch, 784})), "float32 [N, 784]");
  EXPECT_EQ(describe(tensor(std::nullopt, Shape())), "? ?");
}

TEST(ValueBytes, SumsKeepTheirParts) {
  ValueBytes sum(12);
  sum += ValueBytes::of(tensor(at::kFloat, {kBatch}));
  sum += ValueBytes::of(tensor(at::kFloat, Shape()));
  EXPECT_EQ(sum.to_string(), "N x 4 B + 12 B + ?");
  EXPECT_EQ(sum.to_string(2), "20 B + ?");
  EXPECT_EQ(sum.unknown(), 1);
  EXPECT_EQ(sum.at(10), 52);
}

TEST(ValueBytes, TextOfOthersCannotDisturbATerminal) {
  EXPECT_EQ(printable("w\x1b[31m\n\xff"), "w?[31m??");
  EXPECT_EQ(printable("größe 重み"), "größe 重み");
  EXPECT_EQ(printable("\xed\xa0\x80\xc3"), "????");
}

}  // namespace
}  // namespace muster::detail
