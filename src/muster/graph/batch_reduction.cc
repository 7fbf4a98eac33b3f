#include "muster/graph/batch_reduction.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <unordered_map>

#include <ATen/core/Reduction.h>
#include <fmt/format.h>

namespace muster::detail {

namespace {

using Kind = BatchReduction::Kind;

// "aten::sum.dim_IntList" is "sum".
std::string_view short_name(const GraphNode& node) {
  std::string_view name = node.op->name();
  if (const size_t colons = name.find("::"); colons != std::string_view::npos) name.remove_prefix(colons + 2);
  return name.substr(0, name.find('.'));
}

template <size_t kCount>
bool is_one_of(std::string_view name, const std::array<std::string_view, kCount>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// They give the value that they take, or parts of it, or its multiple.
constexpr std::array<std::string_view, 24> kLinear = {
    "alias", "clone", "contiguous", "detach",  "double", "expand", "flatten",   "float",
    "half",  "mean",  "neg",        "permute", "print",  "read",   "reshape",   "select",
    "slice", "sum",   "squeeze",    "t",       "to",     "view",   "transpose", "unsqueeze"};

constexpr std::array<std::string_view, 4> kLists = {"ListConstruct", "cat", "stack", "concat"};

constexpr std::array<std::string_view, 18> kNotLinear = {
    "abs",  "clamp",     "exp",   "log",     "log1p", "log2",   "norm",     "pow",  "reciprocal",
    "relu", "clamp_min", "rsqrt", "sigmoid", "sqrt",  "square", "softplus", "tanh", "linalg_vector_norm"};

constexpr std::array<std::string_view, 7> kOfNumbers = {"NumToTensor", "Int",  "Float",         "to",
                                                        "mul",         "view", "ScalarImplicit"};

// How many dimensions grow with the batch.
int64_t batches_in(const Shape& shape) {
  if (!shape.known()) return 0;
  return std::count_if(shape.sizes().begin(), shape.sizes().end(),
                       [](const Size& size) { return size.batches != 0; });
}

bool has_batch(const Shape& shape) {
  return batches_in(shape) > 0;
}

const Argument* find_argument(const GraphNode& node, std::string_view name) {
  const auto& formals = node.op->schema().arguments();
  for (size_t i = 0; i < std::min(formals.size(), node.arguments.size()); ++i) {
    if (formals[i].name() == name) return &node.arguments[i];
  }
  return nullptr;
}

std::optional<int64_t> integer(const Argument* argument) {
  if (argument == nullptr || !argument->is_value() || !argument->value().isInt()) return std::nullopt;
  return argument->value().toInt();
}

// A size, or a list of them.
bool is_number(const GraphNode& node) {
  return std::none_of(node.outputs.begin(), node.outputs.end(), [](const OutputInfo& output) {
    return output.type->kind() == c10::TypeKind::TensorType;
  });
}

// They take samples as they are, or put them in another place.
constexpr std::array<std::string_view, 9> kKeepSamples = {
    "cat", "concat", "flatten", "movedim", "permute", "squeeze", "stack", "unflatten", "unsqueeze"};

constexpr std::array<std::string_view, 6> kMixSamples = {"cdist",   "index", "masked_select",
                                                         "nonzero", "pdist", "unique"};

// Whether a result of a sample may depend on others, as of softmax over the batch or of flip.
bool works_along_the_batch(const GraphNode& node) {
  const std::string_view name = short_name(node);
  if (is_one_of(name, kKeepSamples)) return false;
  if (is_one_of(name, kMixSamples)) return true;
  const auto& first = node.arguments.front();
  if (first.is_value() || !first.outputs().front().defined()) return false;
  const Shape& shape = first.outputs().front().shape();
  if (!shape.known()) return false;
  const auto rank = static_cast<int64_t>(shape.sizes().size());
  const auto is_of_batch = [&](int64_t dimension) {
    const int64_t place = dimension < 0 ? dimension + rank : dimension;
    return place >= 0 && place < rank && shape.sizes()[static_cast<size_t>(place)].batches != 0;
  };
  for (const char* argument : {"dim", "dims"}) {
    const Argument* given = find_argument(node, argument);
    if (given == nullptr || !given->is_value()) continue;
    if (given->value().isInt() && is_of_batch(given->value().toInt())) return true;
    if (!given->value().isIntList()) continue;
    const auto dimensions = given->value().toIntVector();
    if (std::any_of(dimensions.begin(), dimensions.end(), is_of_batch)) return true;
    if (name == "roll" && dimensions.empty()) return true;
  }
  return false;
}

class Analysis {
 public:
  explicit Analysis(const std::vector<GraphNode*>& nodes) {
    for (const auto* node : nodes) found_.emplace(node, kind_of(*node));
  }

  BatchReduction of(const Output& output) const {
    const auto found = found_.find(output.get());
    if (found == found_.end()) return {};
    if (found->second.kind != Kind::kSamples || has_batch(output.shape())) return found->second;
    return {};
  }

 private:
  // What a node takes of each kind.
  struct Taken {
    size_t nothing = 0;
    size_t samples = 0;
    size_t counts = 0;
    size_t means = 0;
    size_t sums = 0;
    size_t reduced() const { return means + sums; }
  };

  static BatchReduction neither(const GraphNode& node, std::string_view why) {
    return {.kind = Kind::kNeither, .reason = fmt::format("{} {}", node.describe(), why)};
  }

  BatchReduction kind_of(const GraphNode& node) const {
    if (is_of_batches(node)) return {Kind::kSamples, ""};
    Taken taken;
    std::optional<BatchReduction> infectious;
    node.each_input([&](const Output& input) {
      const auto found = found_.find(input.get());
      const BatchReduction& kind = found->second;
      switch (kind.kind) {
        case Kind::kNothing:
          ++taken.nothing;
          break;
        case Kind::kSamples:
          ++taken.samples;
          break;
        case Kind::kCount:
          ++taken.counts;
          break;
        case Kind::kMean:
          ++taken.means;
          break;
        case Kind::kSum:
          ++taken.sums;
          break;
        case Kind::kUnknown:
          if (!infectious) infectious = kind;
          break;
        case Kind::kNeither:
          infectious = kind;
          break;
      }
    });
    if (infectious) return *infectious;
    // What is made of the batch beside each sample: as the samples less their mean.
    if (taken.samples > 0) return taken.reduced() > 0 ? BatchReduction() : of_samples(node);
    if (taken.counts > 0 && taken.reduced() == 0)
      return {is_number(node) || is_one_of(short_name(node), kOfNumbers) ? Kind::kCount : Kind::kUnknown, ""};
    if (taken.reduced() == 0) return {Kind::kNothing, ""};
    return of_reduced(node, taken);
  }

  BatchReduction of_samples(const GraphNode& node) const {
    const std::string_view name = short_name(node);
    const Shape& shape = node.outputs.empty() ? Shape() : node.outputs.front().shape;
    if (name == "size" || name == "numel" || name == "len") return {of_size(node), ""};
    const bool is_reduction = name == "mean" || name == "sum";
    if (batches_in(shape) > 1 || (!is_reduction && works_along_the_batch(node)))
      return {};  // each sample beside others
    if (has_batch(shape)) return {Kind::kSamples, ""};
    if (const auto reduction = integer(find_argument(node, "reduction"))) return of_loss(node, *reduction);
    const bool all = shape.known() || find_argument(node, "dim") == nullptr;
    if (name == "mean" && all) return {Kind::kMean, ""};
    if (name == "sum" && all) return {Kind::kSum, ""};
    return {is_number(node) ? Kind::kSamples : Kind::kUnknown, ""};
  }

  static Kind of_size(const GraphNode& node) {
    const auto dimension = integer(find_argument(node, "dim"));
    const Shape& shape = node.arguments.front().outputs().front().shape();
    if (!dimension || !shape.known()) return Kind::kCount;
    const auto rank = static_cast<int64_t>(shape.sizes().size());
    const int64_t place = *dimension < 0 ? *dimension + rank : *dimension;
    if (place < 0 || place >= rank) return Kind::kCount;
    return shape.sizes()[static_cast<size_t>(place)].batches == 0 ? Kind::kNothing : Kind::kCount;
  }

  static BatchReduction of_loss(const GraphNode& node, int64_t reduction) {
    if (reduction == at::Reduction::Sum) return {Kind::kSum, ""};
    if (reduction != at::Reduction::Mean) return {Kind::kSamples, ""};
    const auto ignored = integer(find_argument(node, "ignore_index"));
    if (!ignored) return {Kind::kMean, ""};
    // Of classes: the mean is divided by the weights of those samples that count.
    constexpr int64_t kIgnoresNothing = -100;
    const Argument* weight = find_argument(node, "weight");
    const bool has_weights = weight != nullptr && !weight->is_value() && weight->outputs().front().defined();
    if (has_weights || *ignored != kIgnoresNothing)
      return neither(node,
                     "divides by the weights of the samples of a batch that count, which differ from "
                     "micro-batch to micro-batch: give it reduction = Sum and divide by a number");
    return {Kind::kMean, ""};
  }

  BatchReduction of_reduced(const GraphNode& node, const Taken& taken) const {
    const std::string_view name = short_name(node);
    const Kind kind = taken.sums == 0 ? Kind::kMean : Kind::kSum;
    const bool is_mixed = taken.sums > 0 && taken.means > 0;
    if (name == "add" || name == "sub" || name == "rsub" || is_one_of(name, kLists)) {
      if (is_mixed) return neither(node, "adds a sum over the batch to a mean");
      const Argument* other = find_argument(node, "other");
      const bool adds_number = other != nullptr && other->is_value() && other->value().isScalar() &&
                               other->value().toScalar().toDouble() != 0;
      if (kind == Kind::kSum && (taken.nothing > 0 || adds_number))
        return neither(node,
                       "adds what does not depend on the batch to a sum over it, which each micro-batch "
                       "would do");
      return {kind, ""};
    }
    if (name == "mul" || name == "div") return of_product(node, taken, kind);
    if (is_one_of(name, kNotLinear)) return neither(node, "is not linear in what the batch gives");
    return {is_one_of(name, kLinear) && !is_mixed ? kind : Kind::kUnknown, ""};
  }

  BatchReduction of_product(const GraphNode& node, const Taken& taken, Kind kind) const {
    const bool divides = short_name(node) == "div";
    const auto& first = node.arguments.front();
    const bool is_over_it =
        divides && !first.is_value() && found_.at(first.outputs().front().get()).kind != kind;
    if (taken.reduced() > 1 || is_over_it) return neither(node, "is not linear in what the batch gives");
    if (taken.counts == 1) {
      if (divides && kind == Kind::kSum) return {Kind::kMean, ""};
      if (!divides && kind == Kind::kMean) return {Kind::kSum, ""};
      return neither(node, "takes the number of samples into account twice");
    }
    return {kind, ""};
  }

  std::unordered_map<const GraphNode*, BatchReduction> found_;
};

}  // namespace

bool is_of_batches(const GraphNode& node) {
  if (node.op->kind() != OperatorKind::kPlaceholder) return false;
  const Shape& shape = node.outputs.front().shape;
  return shape.known() && !shape.sizes().empty() && shape.sizes().front() == Size{.fixed = 0, .batches = 1};
}

BatchReduction batch_reduction(const Output& output, const std::vector<GraphNode*>& nodes) {
  return Analysis(nodes).of(output);
}

}  // namespace muster::detail
