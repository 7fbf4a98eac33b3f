#pragma once

// What a TableClient and a TableService say to each other: one request at a time on a connection, and its
// answer.
//
//   request   RequestHead, then ids (pull, push), gradients (push), the table's name, the rule's text
//             (create)
//   answer    AnswerHead, then nothing (create, push), rows (pull), a TableSize (size), or why it was
//             refused
//
// A close has no answer. Numbers are little-endian. A head that breaks a limit below ends the connection,
// since nobody knows where the next one begins.

#include <bit>
#include <cstddef>
#include <cstdint>

namespace muster::detail {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kTableRequest = 0x4d545251;
constexpr uint32_t kTableAnswer = 0x4d545241;
constexpr size_t kLongestTableName = 255;
constexpr size_t kLongestRuleText = 1000;
constexpr size_t kLongestReason = 4000;
constexpr size_t kLargestRequest = size_t{256} << 20;  // bytes of ids and rows: no batch comes near it

enum class TableRequest : uint16_t { kCreate = 1, kPull, kPush, kSize, kClose };

struct RequestHead {
  uint32_t magic = kTableRequest;
  TableRequest kind = TableRequest::kClose;
  uint16_t name_length = 0;
  uint32_t text_length = 0;  // of the rule: create
  uint32_t width = 0;        // create, pull, push
  uint32_t count = 0;        // of ids: pull, push
  float scale = 0;           // create
  uint64_t seed = 0;         // create
  uint32_t worker = 0;       // these four: push
  uint32_t incarnation = 0;
  uint64_t client = 0;    // a random number, the same for all pushes of a client
  uint64_t sequence = 0;  // grows with each push of a client, from 1 on
};
static_assert(sizeof(RequestHead) == 56);

struct AnswerHead {
  uint32_t magic = kTableAnswer;
  uint32_t refused = 0;  // 1: a reason follows
  uint64_t bytes = 0;    // that follow
};
static_assert(sizeof(AnswerHead) == 16);

/// Throws InvalidArgument that says which limit a head breaks.
void check_head(const RequestHead& head);

/// How much follows a head that passed check_head().
size_t body_bytes(const RequestHead& head);

}  // namespace muster::detail
