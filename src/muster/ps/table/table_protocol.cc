#include "muster/ps/table/table_protocol.h"

#include "muster/base/error.h"
#include "muster/ps/table/table.h"

namespace muster::detail {

void check_head(const RequestHead& head) {
  using enum TableRequest;
  if (head.magic != kTableRequest) raise<InvalidArgument>("this is no request to a table");
  const bool create = head.kind == kCreate;
  const bool rows = head.kind == kPull || head.kind == kPush;
  if (!create && !rows && head.kind != kSize && head.kind != kClose)
    raise<InvalidArgument>("there is no request of kind {}", static_cast<int>(head.kind));
  if (head.name_length > kLongestTableName)
    raise<InvalidArgument>("a table's name of {} bytes; expected at most {}", head.name_length,
                           kLongestTableName);
  if (head.text_length > (create ? kLongestRuleText : 0))
    raise<InvalidArgument>("a rule's text of {} bytes; expected at most {}", head.text_length,
                           create ? kLongestRuleText : 0);
  if (head.width > kWidestRow)
    raise<InvalidArgument>("rows of {} floats; expected at most {}", head.width, kWidestRow);
  if (!rows && head.count != 0) raise<InvalidArgument>("{} ids, where there are none", head.count);
  if (size_t{head.count} * (sizeof(int64_t) + head.width * sizeof(float)) > kLargestRequest)
    raise<InvalidArgument>("{} rows of {} floats are too many for one request; expected at most {} bytes",
                           head.count, head.width, kLargestRequest);
  if (head.kind == kPush && head.sequence == 0) raise<InvalidArgument>("a push without a number");
}

size_t body_bytes(const RequestHead& head) {
  const size_t ids = head.count * sizeof(int64_t);
  const size_t rows = head.kind == TableRequest::kPush ? size_t{head.count} * head.width * sizeof(float) : 0;
  return ids + rows + head.name_length + head.text_length;
}

}  // namespace muster::detail
