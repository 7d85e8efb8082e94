// Operators whose result is not what the CPU would compute from zeros: choices among unknown scores,
// random numbers, and sizes that CUDA reads back in the middle of an operator.
#include "values_torch.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/unique_dim.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

namespace at { // its header has names that are ours too
std::vector<int64_t> infer_size(IntArrayRef a, IntArrayRef b);
}

namespace emulated {
namespace {

// Experts are chosen evenly, also in one row; tokens of a vocabulary come from its middle, where
// there is no padding and no end of sequence.
constexpr int64_t kMostExperts = 512;

const at::TensorOptions kLongs = at::TensorOptions().dtype(at::kLong).device(c10::kCPU);

// What stands for values that nobody knows: OOMDOCTOR_EMULATED_VALUES. Without it they are zeros. A
// number is what one of them reads as, and how many elements of a mask are true.
struct Share {
  enum { none, number_, half, most } kind = none;
  double number = 0;
};

const Share& share() {
  static const Share asked = [] {
    Share found;
    const char* text = std::getenv("OOMDOCTOR_EMULATED_VALUES");
    if (!text || !*text) return found;
    if (!strcmp(text, "max")) found.kind = Share::most;
    else if (!strcmp(text, "half")) found.kind = Share::half;
    else found.kind = Share::number_, found.number = std::strtod(text, nullptr);
    return found;
  }();
  return asked;
}

int64_t selected(int64_t n) {
  if (share().kind == Share::most) return n;
  if (share().kind == Share::half) return n - n / 2;
  return share().number >= static_cast<double>(n) ? n : share().number > 0 ? static_cast<int64_t>(share().number) : 0;
}

bool scores_unknown(const Call& call) {
  const at::Tensor& self = call.args[0].toTensor();
  return (call.large || call.worth != EMU_KNOWN) && !integral(self);
}

// Row t chooses (t*k + j) mod n.
at::Tensor spread(at::IntArrayRef sizes, int64_t dim, int64_t k, int64_t n) {
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  if (!shape.empty()) shape[static_cast<size_t>(dim)] = k;
  std::vector<int64_t> last = shape;
  if (!last.empty()) std::swap(last[static_cast<size_t>(dim)], last.back());
  int64_t numel = 1;
  for (int64_t size : shape) numel *= size;
  at::Tensor all = at::arange(numel, kLongs);
  if (share().kind == Share::most) all = all.remainder(k);
  if (share().kind == Share::half) all = at::where(all.floor_divide(k).remainder(2).eq(0), all.remainder(k), all);
  if (n > kMostExperts) all = all.add(n / 2);
  all = all.remainder(n).reshape(last);
  return last.empty() ? all : all.transpose(dim, -1).contiguous();
}

// Unknown, or computed from zeros that stand for something unknown.
bool is_free(const at::Tensor& t) {
  if (!t.defined() || !t.is_cuda() || !plain(t) || t.numel() == 0) return false;
  unsigned char value[8];
  const bool large = t.numel() > (integral(t) ? kMostIntegers : kMostFloats);
  return (large ? emu_values_state(address(t), span(t), 0, value) : state(t)) <= EMU_BLANK;
}

int64_t wrapped(int64_t dim, int64_t dims) { return dim < 0 ? dim + (dims ? dims : 1) : dim; }

bool small(at::IntArrayRef sizes, int64_t dim, int64_t k) {
  double numel = static_cast<double>(k);
  for (size_t i = 0; i < sizes.size(); i++)
    if (static_cast<int64_t>(i) != dim) numel *= static_cast<double>(sizes[i]);
  return numel <= static_cast<double>(kMostIntegers);
}

bool pair(Results& results, at::Tensor indices) {
  results.returned = {c10::IValue(), std::move(indices)};
  results.worth = EMU_ASSUMED;
  return true;
}

bool topk(const Call& call, Results& results) {
  const at::Tensor& self = call.args[0].toTensor();
  const int64_t k = call.args[1].toInt(), dim = wrapped(call.args[2].toInt(), self.dim());
  if (!scores_unknown(call) || self.dim() == 0 || k == 0 || k > self.size(dim) || !small(self.sizes(), dim, k))
    return false;
  return pair(results, spread(self.sizes(), dim, k, self.size(dim)));
}

bool arg_of_best(const Call& call, Results& results) { // argmax, argmin
  const at::Tensor& self = call.args[0].toTensor();
  if (!scores_unknown(call) || self.dim() == 0 || self.numel() == 0) return false;
  at::Tensor chosen;
  if (call.args[1].isNone()) {
    chosen = spread({self.numel()}, 0, 1, self.numel()).reshape({});
    if (call.args[2].toBool()) return false;
  } else {
    const int64_t dim = wrapped(call.args[1].toInt(), self.dim());
    if (!small(self.sizes(), dim, 1)) return false;
    chosen = spread(self.sizes(), dim, 1, self.size(dim));
    if (!call.args[2].toBool()) chosen = chosen.squeeze(dim);
  }
  results.returned = {chosen};
  results.worth = EMU_ASSUMED;
  return true;
}

bool best(const Call& call, Results& results) { // max.dim, min.dim
  const at::Tensor& self = call.args[0].toTensor();
  if (!scores_unknown(call) || self.dim() == 0 || self.numel() == 0) return false;
  const int64_t dim = wrapped(call.args[1].toInt(), self.dim());
  if (!small(self.sizes(), dim, 1)) return false;
  at::Tensor chosen = spread(self.sizes(), dim, 1, self.size(dim));
  return pair(results, call.args[2].toBool() ? chosen : chosen.squeeze(dim));
}

bool sort(const Call& call, Results& results) { // the order stays
  const at::Tensor& self = call.args[0].toTensor();
  if (!scores_unknown(call) || self.dim() == 0) return false;
  if (!small(self.sizes(), -1, 1)) return false;
  size_t at = 1;
  while (at < call.args.size() && !call.args[at].isInt()) at++; // sort(dim), sort.stable(stable, dim)
  if (at == call.args.size()) return false;
  const int64_t dim = wrapped(call.args[at].toInt(), self.dim());
  std::vector<int64_t> shape(static_cast<size_t>(self.dim()), 1);
  shape[static_cast<size_t>(dim)] = self.size(dim);
  return pair(results, at::arange(self.size(dim), kLongs).reshape(shape).expand(self.sizes()));
}

bool multinomial(const Call& call, Results& results) {
  const at::Tensor& self = call.args[0].toTensor();
  const int64_t k = call.args[1].toInt();
  if (self.dim() == 0) return false;
  results.returned = {spread(self.sizes(), self.dim() - 1, k, self.size(-1))};
  results.worth = EMU_ASSUMED;
  return true;
}

// Something that looks random, the same in each run; the program's generator is not touched.
bool random_integers(const Call& call, Results& results) {
  const at::Tensor& self = call.args[0].toTensor();
  if (!integral(self) || self.numel() > kMostIntegers || !plain(self)) return false;
  int64_t low = 0, high = self.scalar_type() == at::kBool ? 2 : self.element_size() == 1 ? 128 : 1 << 15;
  if (call.args.size() == 4) {
    low = call.args[1].toInt();
    if (call.args[2].isInt()) high = call.args[2].toInt();
  } else if (call.args.size() == 3) {
    high = call.args[1].toInt();
  }
  if (high <= low) return false;
  const uint64_t reach = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  if ((reach <= 2 || self.numel() == 1) && share().kind == Share::most) { // a mask, or a length
    results.writes.push_back(place(self));
    results.writes.back().value = at::full(self.sizes(), high - 1, kLongs);
    results.worth = EMU_ASSUMED;
    return true;
  }
  at::Tensor made = at::empty(self.sizes(), kLongs);
  int64_t* to = made.mutable_data_ptr<int64_t>();
  for (uint64_t i = 0; i < static_cast<uint64_t>(made.numel()); i++) {
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull; // splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    to[i] = low + static_cast<int64_t>((x ^ (x >> 31)) % reach);
  }
  results.writes.push_back(place(self));
  results.writes.back().value = made;
  results.worth = EMU_ASSUMED;
  return true;
}

// Where the indices reach every element, nothing is left of what was there, as in
// empty_like(order).scatter_(0, order, arange(n)).
bool overwritten(const Call& call, Results& results, const at::Tensor& reached, int worth) {
  if (!reached.all().item<bool>()) return false;
  return compute(Call{call.op, call.args, false, worth}, results);
}

bool scatter(const Call& call, Results& results) {
  const at::Tensor &self = call.args[0].toTensor(), &index = call.args[2].toTensor();
  if (call.large || call.worth > EMU_BLANK || call.args.size() != 4 || !plain(index) || state(index) <= EMU_BLANK) return false;
  int worth = state(index);
  if (call.args[3].isTensor()) worth = std::min(worth, state(call.args[3].toTensor()));
  const at::Tensor none = at::zeros(self.sizes(), at::kBool);
  return overwritten(call, results, none.scatter(call.args[1].toInt(), alias(index), 1), worth);
}

bool index_put(const Call& call, Results& results) {
  const at::Tensor &self = call.args[0].toTensor(), &values = call.args[2].toTensor();
  const auto indices = call.args[1].toListRef();
  if (call.large || call.worth > EMU_BLANK || call.args[3].toBool() || self.dim() != 1 || indices.size() != 1) return false;
  const at::Tensor& index = indices[0].toTensor();
  if (!plain(index) || !plain(values) || index.scalar_type() != at::kLong || state(index) <= EMU_BLANK) return false;
  const at::Tensor none = at::zeros(self.sizes(), at::kBool);
  return overwritten(call, results, none.index_fill(0, alias(index).flatten(), 1), std::min(state(index), state(values)));
}

bool permutation(const Call& call, Results& results) {
  const int64_t n = call.args[0].toInt();
  if (n > kMostIntegers) return false;
  results.returned = {at::arange(n, kLongs)};
  results.worth = EMU_ASSUMED;
  return true;
}

// Probabilities of unknown scores are equal: whoever samples from them finds that they sum to one.
bool softmax(const Call& call, Results& results) {
  const at::Tensor& self = call.args[0].toTensor();
  if ((!call.large && call.worth != EMU_UNKNOWN) || self.dim() == 0) return false;
  const int64_t dim = wrapped(call.args[1].toInt(), self.dim());
  results.returned = {at::full({}, 1.0 / static_cast<double>(std::max<int64_t>(self.size(dim), 1)), at::kFloat)};
  results.uniform = true;
  results.worth = EMU_BLANK;
  return true;
}

// CUDA counts on the device, reads the count and allocates that much.
bool nonzero(const Call& call, Results& results) {
  if (share().kind != Share::none && is_free(call.args[0].toTensor())) {
    const int64_t found = selected(call.args[0].toTensor().numel());
    emu_values_expect(&found, sizeof found, EMU_ASSUMED);
    return true;
  }
  if (!call.large) {
    if (!compute(call, results)) return false;
    const int64_t found = results.returned.back().toTensor().size(0);
    emu_values_expect(&found, sizeof found, std::max<int>(results.worth, EMU_BLANK));
    return true;
  }
  const at::Tensor& self = call.args[0].toTensor();
  unsigned char value[8], zeros[8] = {0};
  const int worth = emu_values_state(address(self), span(self), 0, value);
  if (worth == EMU_UNKNOWN) return false;
  const int64_t found = memcmp(value, zeros, std::min<size_t>(8, self.element_size())) ? self.numel() : 0;
  if (found > INT32_MAX) return false;
  emu_values_expect(&found, sizeof found, worth);
  return true;
}

bool unique(const Call& call, Results& results) {
  if (share().kind != Share::none && is_free(call.args[0].toTensor())) {
    const at::Tensor& self = call.args[0].toTensor();
    int64_t most = self.numel();
    if (call.op.name.rfind("unique_dim", 0) == 0) most = self.size(wrapped(call.args[1].toInt(), self.dim()));
    const int64_t found = std::min(std::max<int64_t>(selected(most), 1), most);
    emu_values_expect(&found, sizeof found, EMU_ASSUMED);
    return true;
  }
  if (call.large || !compute(call, results)) return false;
  const at::Tensor& self = call.args[0].toTensor();
  int64_t dim = 0, found;
  if (call.op.name.rfind("unique_dim", 0) == 0) dim = wrapped(call.args[1].toInt(), self.dim());
  else if (call.op.name == "unique_consecutive" && call.args[3].isInt()) dim = wrapped(call.args[3].toInt(), self.dim());
  found = results.returned[0].toTensor().size(dim);
  // Booleans are counted, not sorted.
  if (self.scalar_type() == at::kBool && call.op.name[0] == '_') found = alias(self).sum().item<int64_t>();
  emu_values_expect(&found, sizeof found, std::max<int>(results.worth, EMU_BLANK));
  return true;
}

// An unknown floating-point number is equal to no number that a program names: pixels are no padding.
bool compared(const Call& call, Results& results, bool found) {
  const at::Tensor& self = call.args[0].toTensor();
  if (!self.is_floating_point() || !plain(self) || self.numel() == 0) return false;
  unsigned char value[8];
  if (emu_values_state(address(self), span(self), 0, value) != EMU_UNKNOWN) return false;
  results.returned = {at::full({}, found, at::kBool)};
  results.uniform = true;
  results.worth = EMU_BLANK;
  return true;
}

bool equals_number(const Call& call, Results& results) { return compared(call, results, false); }
bool differs_from_number(const Call& call, Results& results) { return compared(call, results, true); }

// CUDA compares without the dispatcher and reads one byte.
bool equal(const Call& call, Results&) {
  bool same = true; // large ones: unknown, or as it was meant
  if (!call.large) {
    const at::Tensor &a = call.args[0].toTensor(), &b = call.args[1].toTensor();
    if (!plain(a) || !plain(b) || a.sizes() != b.sizes()) return true;
    same = alias(a).equal(alias(b).to(a.scalar_type()));
  }
  emu_values_expect(&same, 1, call.large || call.worth == EMU_UNKNOWN ? EMU_BLANK : call.worth);
  return true;
}

// Gradients are taken to be finite.
bool check_and_unscale(const Call& call, Results& results) {
  each_tensor(call.args[0], drop);
  const at::Tensor& found = call.args[1].toTensor();
  if (plain(found) && state(found) != EMU_UNKNOWN) {
    results.writes.push_back(place(found));
    results.writes.back().value = alias(found).clone();
    results.worth = EMU_ASSUMED;
  }
  return true;
}

bool scalar(const Call& call, Results&) {
  const at::Tensor& self = call.args[0].toTensor();
  if (share().number == 0 || emu_values_expecting() || call.worth > EMU_BLANK || self.scalar_type() == at::kBool) return true;
  const at::Tensor number = at::full({}, share().number, self.scalar_type());
  if (number.element_size() <= 8) emu_values_expect(number.const_data_ptr(), number.element_size(), call.worth);
  return true;
}

// A mask of the share that is asked for; undefined if it is too large to be written.
at::Tensor mask_of(at::IntArrayRef sizes) {
  if (share().kind == Share::most) return at::full({}, true, at::kBool);
  const int64_t numel = c10::multiply_integers(sizes);
  if (numel > kMostIntegers) return {};
  const at::Tensor each = at::arange(numel, kLongs);
  return (share().kind == Share::half ? each.remainder(2).eq(0) : each.lt(selected(numel))).reshape(sizes);
}
} // namespace

void expect_coalesced(const at::Tensor& sparse) {
  const at::Tensor indices = sparse._indices();
  const int64_t nnz = indices.size(1);
  if (!plain(indices) || nnz == 0 || indices.numel() > kMostIntegers) return;
  const int worth = state(indices);
  int64_t found = share().kind == Share::none ? 1 : std::min(std::max<int64_t>(selected(nnz), 1), nnz);
  if (worth > EMU_BLANK) found = std::get<0>(at::unique_dim(alias(indices), 1)).size(1);
  emu_values_expect(&found, sizeof found, worth > EMU_BLANK || share().kind == Share::none ? worth : EMU_ASSUMED);
}

bool is_about_finite(const Call& call) {
  const Op& op = call.op;
  if (op.name == "isnan" || op.name == "isinf" || op.name == "isfinite" || op.name == "isposinf" || op.name == "isneginf")
    return true;
  if (!op.compares || op.name == "copy_" || call.args.size() < 2 || !call.args[0].isTensor()) return false;
  if (call.args[1].isScalar()) return !std::isfinite(call.args[1].toScalar().toDouble());
  return call.args[1].isTensor() && call.args[0].toTensor().is_same(call.args[1].toTensor()); // x != x
}

bool mask_of_unknown(const Call& call, Results& results) {
  const Op& op = call.op;
  if (share().kind == Share::none || call.args.empty() || !call.args[0].isTensor()) return false;
  const at::Tensor& self = call.args[0].toTensor();
  const bool copies = op.name == "copy_", two = call.args.size() > 1 && call.args[1].isTensor();
  if (copies && self.scalar_type() != at::kBool) return false;
  const at::Tensor& other = two ? call.args[1].toTensor() : self;
  if (is_about_finite(call) || !(!copies && is_free(self)) && !(two && is_free(other))) return false;
  const std::vector<int64_t> sizes =
      copies || op.name == "isin" || !two ? self.sizes().vec() : at::infer_size(self.sizes(), other.sizes());
  if (sizes.empty()) return false; // one truth is a branch, not a size
  const at::Tensor mask = mask_of(sizes);
  if (!mask.defined()) return false;
  if (copies) {
    results.writes.push_back(place(self));
    results.writes.back().value = mask;
  } else {
    results.returned = {mask};
  }
  results.uniform = mask.dim() == 0;
  results.worth = EMU_ASSUMED;
  return true;
}

Rule rule_of(const std::string& name, const std::string& overload) {
  static const std::unordered_map<std::string, Rule> rules = {
      {"topk", topk}, {"argmax", arg_of_best}, {"argmin", arg_of_best}, {"sort", sort},
      {"scatter", scatter}, {"scatter_", scatter}, {"_index_put_impl_", index_put},
      {"multinomial", multinomial}, {"random_", random_integers}, {"randperm", permutation},
      {"_softmax", softmax}, {"nonzero", nonzero}, {"_unique2", unique}, {"_unique", unique},
      {"unique_dim", unique}, {"unique_dim_consecutive", unique}, {"unique_consecutive", unique},
      {"_amp_foreach_non_finite_check_and_unscale_", check_and_unscale}, {"_local_scalar_dense", scalar}, {"equal", equal}};
  if ((name == "max" || name == "min") && overload.rfind("dim", 0) == 0) return best;
  if (name == "eq" && overload == "Scalar") return equals_number;
  if (name == "ne" && overload == "Scalar") return differs_from_number;
  const auto found = rules.find(name);
  return found == rules.end() ? nullptr : found->second;
}
} // namespace emulated
