// Tensors on emulated memory: what is known of them, and writing to them.
#include "values_torch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

namespace emulated {
namespace {

// A range of the map for each row of a slice would cost more than it tells: a slice of many rows is
// taken as a whole, with what lies between the rows.
constexpr int64_t kMostRuns = 256;

const c10::DispatchKeySet kWrappers = c10::DispatchKeySet({
    c10::DispatchKey::Python, c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched,
    c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
    c10::DispatchKey::ZeroTensor, c10::DispatchKey::Batched});

struct NoWarning : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// Calls f(address, bytes) for each contiguous run; false if there are too many.
template <class F>
bool each_run(const Write& w, F f) {
  const int64_t item = static_cast<int64_t>(c10::elementSize(w.type));
  std::vector<std::pair<int64_t, int64_t>> dims; // stride, size; a run grows from the smallest
  for (size_t i = 0; i < w.sizes.size(); i++) {
    if (w.sizes[i] == 0) return true;
    if (w.sizes[i] > 1 && w.strides[i] != 0) dims.emplace_back(w.strides[i], w.sizes[i]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t run = 1, runs = 1;
  size_t inner = 0;
  while (inner < dims.size() && dims[inner].first == run) run *= dims[inner++].second;
  for (size_t i = inner; i < dims.size(); i++) runs *= dims[i].second;
  if (runs > kMostRuns) return false;
  std::vector<int64_t> index(dims.size(), 0);
  for (int64_t r = 0; r < runs; r++) {
    int64_t offset = 0;
    for (size_t i = inner; i < dims.size(); i++) offset += index[i] * dims[i].first;
    f(w.at + static_cast<uint64_t>(offset * item), static_cast<size_t>(run * item));
    for (size_t i = inner; i < dims.size() && ++index[i] == dims[i].second; i++) index[i] = 0;
  }
  return true;
}

uint64_t span_of(const Write& w) {
  uint64_t last = 0;
  for (size_t i = 0; i < w.sizes.size(); i++) {
    if (w.sizes[i] == 0) return 0;
    last += static_cast<uint64_t>((w.sizes[i] - 1) * w.strides[i]);
  }
  return (last + 1) * c10::elementSize(w.type);
}
} // namespace

bool plain(const at::Tensor& t) {
  const auto keys = t.unsafeGetTensorImpl()->key_set();
  return keys.has(c10::DispatchKey::CUDA) && (keys & kWrappers).empty() && t.layout() == c10::kStrided &&
      t.has_storage() && !t.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

bool integral(const at::Tensor& t) { return c10::isIntegralType(t.scalar_type(), true); }

uint64_t address(const at::Tensor& t) {
  return t.numel() ? reinterpret_cast<uint64_t>(t.const_data_ptr()) : 0;
}

uint64_t span(const at::Tensor& t) { return t.numel() ? span_of(place(t)) : 0; }

Write place(const at::Tensor& t) {
  return Write{address(t), t.sizes().vec(), t.strides().vec(), t.scalar_type(), at::Tensor()};
}

int state(const at::Tensor& t) {
  if (t.numel() == 0) return EMU_KNOWN;
  unsigned char ignored[8];
  const uint64_t at = address(t);
  if (t.is_contiguous()) return emu_values_state(at, t.nbytes(), t.nbytes(), ignored);
  const Write w = place(t);
  const uint64_t bytes = span_of(w);
  int worth = emu_values_state(at, bytes, bytes, ignored);
  if (worth != EMU_UNKNOWN || !emu_values_any(at, bytes)) return worth;
  worth = EMU_KNOWN; // the gaps may be what is unknown
  const bool counted = each_run(w, [&](uint64_t from, size_t n) {
    if (worth != EMU_UNKNOWN) worth = std::min(worth, emu_values_state(from, n, n, ignored));
  });
  return counted ? worth : static_cast<int>(EMU_UNKNOWN);
}

at::Tensor alias(const at::Tensor& t) {
  const auto options = at::TensorOptions().dtype(t.scalar_type()).device(c10::kCPU);
  if (t.numel() == 0) return at::empty(t.sizes(), options);
  at::Tensor view = at::from_blob(const_cast<void*>(t.const_data_ptr()), t.sizes(), t.strides(), options);
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) view.unsafeGetTensorImpl()->set_wrapped_number(true);
  return view;
}

void drop(const at::Tensor& t) {
  if (t.numel() == 0) return;
  const uint64_t at = address(t);
  if (t.is_contiguous()) return emu_values_drop(at, t.nbytes());
  const Write w = place(t);
  const uint64_t bytes = span_of(w);
  if (!emu_values_any(at, bytes)) return;
  if (!each_run(w, [](uint64_t from, size_t n) { emu_values_drop(from, n); })) emu_values_drop(at, bytes);
}

void store(const Write& w, const at::Tensor& given, int worth, bool uniform) {
  int64_t numel = 1;
  for (int64_t size : w.sizes) numel *= size;
  if (numel == 0) return;
  const uint64_t bytes = span_of(w);
  const auto type = given.scalar_type() == w.type ? given : given.to(w.type);
  if (worth == EMU_UNKNOWN && c10::isIntegralType(w.type, true)) worth = EMU_BLANK;
  if (worth == EMU_KNOWN && emu_values_capturing()) worth = EMU_ASSUMED; // a replay would differ
  const bool fits = uniform ? type.numel() == 1 : type.sizes() == c10::IntArrayRef(w.sizes);
  // Zeros that stand for something unknown make no NaN that a program would stop for.
  const bool wrong = worth != EMU_KNOWN && c10::isFloatingType(w.type) && type.isnan().any().item<bool>();
  if (worth == EMU_UNKNOWN || !fits || wrong) {
    if (!each_run(w, [](uint64_t from, size_t n) { emu_values_drop(from, n); })) emu_values_drop(w.at, bytes);
    return;
  }
  const size_t item = c10::elementSize(w.type);
  if (uniform && static_cast<size_t>(numel) * item > kWrittenBytes && item <= 8) {
    const void* value = type.const_data_ptr();
    const auto splat = [&](uint64_t from, size_t n) { emu_values_splat(from, n, value, item, worth); };
    if (!each_run(w, splat)) emu_values_drop(w.at, bytes);
    return;
  }
  if (!emu_values_claim(w.at, bytes)) return;
  unsigned char ignored[8];
  emu_values_state(w.at, bytes, bytes, ignored); // gaps keep what they have
  at::Tensor target = at::from_blob(
      reinterpret_cast<void*>(w.at), w.sizes, w.strides, at::TensorOptions().dtype(w.type).device(c10::kCPU));
  target.copy_(uniform ? type.reshape({}) : type);
  const auto mark = [&](uint64_t from, size_t n) { emu_values_mark(from, n, worth); };
  if (each_run(w, mark)) return;
  const int between = emu_values_state(w.at, bytes, bytes, ignored);
  emu_values_mark(w.at, bytes, std::min<int>(worth, std::max<int>(between, EMU_BLANK)));
}

struct Quiet::State {
  // Only what a plain CPU operator needs: whatever mode the program is in does not see it.
  c10::impl::ForceDispatchKeyGuard keys{
      c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
      c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
          c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView)};
  at::DisableRecordFunctionGuard callbacks;
  NoWarning silent;
  c10::WarningUtils::WarningHandlerGuard warnings{&silent};
};
Quiet::Quiet() : state(std::make_unique<State>()) {}
Quiet::~Quiet() = default;
} // namespace emulated
