// Real values for small tensors: watches every operator that the dispatcher calls, in every thread,
// and computes the small ones on the CPU.
//
// The operator itself runs as always, on kernels that do nothing. torch's own observer interface
// (the one its profiler uses) calls on_start before and on_end after it. If all inputs are small and
// known, the same operator runs on CPU tensors that are views of the emulated memory; its result is
// written to the output's memory at the end. Any other operator makes what it writes unknown.
// Nothing in torch is patched.
#include "launches.h"
#include "values_torch.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <mutex>
#include <pthread.h>
#include <unordered_map>
#include <unordered_set>

namespace emulated {
namespace {

using Names = std::unordered_set<std::string>;

// They copy or fill without another operator, and have no kernel of CUDA's own.
const Names kLeaves = {"copy_", "_coalesce"};
// Declared as writing, but the values stay.
const Names kHarmless = {"resize_", "resize_as_", "resize", "record_stream", "_resize_output_", "requires_grad_",
                         "retain_grad", "rename_", "detach_", "set_data"};
const Names kOverwrites = {"copy_", "fill_", "zero_", "random_"};
const Names kFills = {"fill_", "zero_"};
const Names kTruths = {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isposinf", "isneginf", "isfinite",
                       "signbit", "logical_not", "logical_and", "logical_or", "logical_xor", "all", "any", "argmax",
                       "argmin", "topk", "sort", "nonzero", "nonzero_static", "count_nonzero", "searchsorted",
                       "bucketize", "isin", "kthvalue", "mode", "median", "_unique2", "_unique", "unique_dim",
                       "unique_dim_consecutive", "unique_consecutive", "bincount", "multinomial", "cummax", "cummin"};
const Names kElementwise = {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isposinf", "isneginf", "signbit",
                            "logical_not", "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or",
                            "bitwise_not", "bitwise_xor", "abs", "neg", "sign", "mul", "add", "sub", "div", "where",
                            "masked_fill_", "clamp", "maximum", "minimum", "copy_", "fill_", "zero_", "logical_not_",
                            "logical_and_", "logical_or_", "bitwise_and_", "bitwise_or_", "mul_", "add_", "sub_"};
const Names kCompares = {"eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or",
                         "logical_xor", "isin", "signbit", "copy_"};
const Names kSynonyms = {"greater", "greater_equal", "less", "less_equal", "not_equal"};
const Names kReductions = {"all", "any", "amax", "amin", "max", "min", "mean"};
const Names kSelecting = {"where", "masked_fill_", "cat"};
const Names kFactories = {"tril_indices", "triu_indices"};
const Names kReaders = {"item", "_local_scalar_dense", "is_nonzero", "copy_", "to", "_to_copy", "cpu", "clone",
                        "contiguous", "allclose", "equal"};
// The only number that they read is a random one, the seed of their dropout: any will do.
const Names kSeeds = {"lstm", "gru", "rnn_tanh", "rnn_relu"};
// Collectives: the stand-in of NCCL knows what travels.
const Names kElsewhere = {"c10d", "_c10d_functional", "_dtensor", "symm_mem", "profiler", "record_function"};

void describe(Op& op) {
  const auto& handle = op.handle;
  const auto& schema = handle.schema();
  const std::string& full = handle.operator_name().name;
  const size_t colons = full.find("::");
  const std::string space = full.substr(0, colons);
  op.name = full.substr(colons + 2);
  const bool ours = space == "aten" || space == "prims";
  const bool leaf = handle.hasKernelForDispatchKey(c10::DispatchKey::CUDA) || kLeaves.count(op.name) || !ours;
  for (const auto& argument : schema.arguments()) {
    const auto* alias_info = argument.alias_info();
    const bool writes = alias_info && alias_info->isWrite();
    op.writes.push_back(writes);
    op.out.push_back(writes && argument.is_out());
    op.mutates |= writes;
  }
  bool makes = false;
  for (const auto& returned : schema.returns()) {
    const auto* alias_info = returned.alias_info();
    const bool tensors = returned.type()->str().find("Tensor") != std::string::npos;
    bool fresh = tensors && !alias_info;
    if (tensors && alias_info && alias_info->isWrite()) // an `out` argument comes back
      for (size_t i = 0; i < op.out.size(); i++)
        if (op.out[i] && schema.arguments()[i].alias_info()->beforeSets() == alias_info->beforeSets()) fresh = true;
    op.fresh.push_back(fresh);
    makes |= fresh;
  }
  op.rule = ours ? rule_of(op.name, handle.operator_name().overload_name) : nullptr;
  op.ignored = !leaf || kElsewhere.count(space) || kHarmless.count(op.name) || op.name.rfind("set_", 0) == 0 ||
      handle.hasTag(at::Tag::inplace_view) || !(makes || op.mutates || op.rule);
  // As a dispatch mode sees it: what is made of other operators is not seen itself, nor are views.
  const bool made_of_others = handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
      !handle.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
  op.noted = !made_of_others && !kElsewhere.count(space) &&
      (makes || op.mutates) && !handle.hasTag(at::Tag::inplace_view);
  op.random = handle.hasTag(at::Tag::nondeterministic_seeded);
  op.computable = ours && !op.random && (makes || op.mutates) && op.name.rfind("empty", 0) != 0 &&
      handle.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  op.overwrites = kOverwrites.count(op.name);
  op.fills = kFills.count(op.name);
  op.truth = kTruths.count(op.name);
  op.compares = kCompares.count(op.name);
  op.reads = kReaders.count(op.name);
  op.checks = op.name == "_linalg_check_errors";
  op.seeds = kSeeds.count(op.name);
  op.selects = kSelecting.count(op.name);
  op.factory = kFactories.count(op.name);
  if (kElementwise.count(op.name)) op.uniform = Uniform::elementwise;
  if (kReductions.count(op.name)) op.uniform = Uniform::reduction;
  if (op.name == "sum" || op.name == "count_nonzero") op.uniform = Uniform::sum;
}

// An operator is known by where its name lies: each schema holds its own.
std::mutex lock;
std::unordered_map<const char*, std::unique_ptr<Op>> operators;

const Op* look_up(const at::RecordFunction& fn) {
  const auto name = fn.operator_name();
  if (!name) return nullptr; // not the dispatcher's; its name may lie anywhere
  std::lock_guard<std::mutex> guard(lock);
  auto& op = operators[fn.name()];
  if (!op) {
    const auto handle = c10::Dispatcher::singleton().findSchema(*name);
    if (!handle) return nullptr;
    op = std::make_unique<Op>(*handle);
    describe(*op);
  }
  return op.get();
}
} // namespace

const Op* known(const at::RecordFunction& fn) {
  struct Slot {
    const char* name;
    const Op* op;
  };
  static thread_local Slot slots[1024];
  const char* name = fn.name();
  Slot& slot = slots[(reinterpret_cast<uintptr_t>(name) >> 4) % 1024];
  if (slot.name != name || !slot.op) {
    const Op* op = look_up(fn);
    if (!op) return nullptr;
    slot = {name, op};
  }
  return slot.op;
}

namespace {

bool modes() { // someone else runs the operator, perhaps on other tensors
  const auto tls = c10::impl::tls_local_dispatch_key_set();
  return tls.included_.has_any(c10::DispatchKeySet(
      {c10::DispatchKey::Python, c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchDynamicLayerFrontMode}));
}

void forget_writes(const Op& op, c10::ArrayRef<c10::IValue> args) {
  for (size_t i = 0; i < args.size(); i++)
    if (op.writes[i])
      each_tensor(args[i], [](const at::Tensor& t) {
        if (t.defined() && t.is_cuda() && plain(t)) drop(t);
      });
}

struct Inputs {
  bool cuda = false, wrapped = false, large = false, hopeless = false, integers = true, integer_writes = true, written = false;
  int worth = EMU_KNOWN;
};

// Stops early where nothing is to be computed.
Inputs inspect(const Op& op, c10::ArrayRef<c10::IValue> args) {
  Inputs in;
  for (size_t i = 0; i < args.size() && !in.wrapped; i++)
    each_tensor(args[i], [&](const at::Tensor& t) {
      if (!t.defined() || in.wrapped) return;
      const bool whole = integral(t);
      if (op.writes[i]) in.written = true, in.integer_writes &= whole;
      if (!t.is_cuda()) {
        in.large |= t.numel() > kMostIntegers;
        return;
      }
      in.cuda = true;
      if (!plain(t)) {
        in.wrapped = true;
        return;
      }
      if (op.out[i]) return;
      if (t.numel() > (whole ? kMostIntegers : kMostFloats)) {
        in.large = true;
        if (op.writes[i] && op.overwrites) return;
        // Unknown floats make unknown floats.
        unsigned char value[8];
        if (!whole && !op.truth && op.uniform != Uniform::no && !in.hopeless)
          in.hopeless = emu_values_state(address(t), t.element_size(), 0, value) == EMU_UNKNOWN;
        return;
      }
      if (op.writes[i] && op.overwrites) return;
      in.integers &= whole;
      if (!in.large && in.worth != EMU_UNKNOWN) in.worth = std::min(in.worth, state(t));
    });
  return in;
}

// The operators that are running in this thread, from the outermost.
constexpr size_t kMostRunning = 64;
thread_local struct {
  const Op* ops[kMostRunning];
  size_t depth = 0;
} running;

// Whether the program asked for the operator itself; what others check inside is no choice of it.
bool asked_for() {
  return running.depth == 1 || (running.depth == 2 && kSynonyms.count(running.ops[0]->name));
}

// As Python's struct names it; 0: not one of these.
int type_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat: return 'f';
    case at::kDouble: return 'd';
    case at::kHalf: return 'e';
    case at::kBFloat16: return 'r';
    case at::kLong: return 'q';
    case at::kInt: return 'i';
    case at::kShort: return 'h';
    case at::kChar: return 'b';
    case at::kByte: return 'B';
    case at::kBool: return '?';
    default: return 0;
  }
}

// What a read-back would give now: an element of `t`, or what an operator reads for itself.
void say_reader(const at::Tensor* t) {
  size_t i = std::min(running.depth, kMostRunning);
  const Op* outer = i ? running.ops[0] : nullptr;
  while (i > 0 && running.ops[i - 1]->reads) i--;
  const Op* asks = i ? running.ops[i - 1] : nullptr;
  int read = asks && !asks->checks ? EMU_READ_SIZE : EMU_READ_NUMBER;
  if (t && t->scalar_type() == at::kBool) read = EMU_READ_TRUTH;
  else if (t && !integral(*t)) read = EMU_READ_NUMBER;
  else if (t && !asks) read = EMU_READ_INTEGER;
  if (asks && asks->seeds && t && t->element_size() == sizeof(int64_t)) {
    const int64_t seed = 0;
    emu_values_expect(&seed, sizeof seed, EMU_KNOWN);
  }
  emu_values_reader(outer ? outer->name.c_str() : nullptr, read, t ? type_of(*t) : 0);
}

bool worth_a_splat(const at::Tensor& t) { return t.nbytes() > kWrittenBytes && t.is_contiguous() && t.element_size() <= 8; }

std::unique_ptr<at::ObserverContext> start(const Op& op, c10::ArrayRef<c10::IValue> args) {
  // A copy from or to the host is made by the stand-in of the runtime; it only has to know what is
  // worth keeping.
  if (op.name == "copy_" && args[0].toTensor().is_cuda() != args[1].toTensor().is_cuda()) {
    const at::Tensor& from = args[1].toTensor();
    if (from.is_cuda()) say_reader(&from);
    const int64_t most = integral(from) ? kMostIntegers * 8 : kMostFloats * 8;
    if (from.is_cpu()) emu_values_limit(static_cast<size_t>(most));
    return nullptr;
  }
  if (op.name == "_local_scalar_dense") say_reader(&args[0].toTensor());
  if (op.name == "_coalesce") { // of a sparse tensor, which is not plain
    Quiet quiet;
    expect_coalesced(args[0].toTensor());
    return nullptr;
  }
  const Inputs in = inspect(op, args);
  if (!in.cuda && !op.factory) return nullptr;
  if (in.wrapped) return nullptr;
  const bool whole = op.truth || op.selects || (in.written ? in.integer_writes : in.integers);
  const Call call{op, args, in.large, op.selects ? std::max<int>(in.worth, EMU_BLANK) : in.worth};
  auto results = std::make_unique<Results>();
  if (op.compares && (op.name == "copy_" || asked_for())) {
    Quiet quiet;
    if (mask_of_unknown(call, *results)) return results;
  }
  if (!op.rule) {
    const bool hopeless = in.large ? op.uniform == Uniform::no || in.hopeless : in.worth == EMU_UNKNOWN && !whole;
    if (hopeless || !op.computable) {
      if (op.mutates) forget_writes(op, args);
      return nullptr;
    }
  }
  Quiet quiet;
  bool done = op.rule && op.rule(call, *results);
  // One element says it all. (Compilers fill a large buffer hundreds of times while they try kernels.)
  if (op.fills && worth_a_splat(args[0].toTensor())) done = compute_uniform(call, *results);
  if (!done && !in.large && (in.worth != EMU_UNKNOWN || whole)) done = compute(call, *results);
  if (!done && in.large) done = compute_uniform(call, *results);
  if (done && is_about_finite(call)) results->worth = std::max<int>(results->worth, EMU_ASSUMED);
  if (!done) {
    if (op.mutates) forget_writes(op, args);
    return nullptr;
  }
  return results;
}

void finish(const Op& op, c10::ArrayRef<c10::IValue> outs, Results* results) {
  std::unique_ptr<Quiet> quiet;
  if (results) quiet = std::make_unique<Quiet>();
  for (size_t i = 0; i < outs.size() && i < op.fresh.size(); i++) {
    if (!op.fresh[i]) continue;
    std::vector<at::Tensor> made;
    if (results && i < results->returned.size())
      each_tensor(results->returned[i], [&](const at::Tensor& t) { made.push_back(t); });
    size_t n = 0;
    each_tensor(outs[i], [&](const at::Tensor& t) {
      const size_t at = n++;
      if (!t.defined() || !t.is_cuda() || !plain(t) || t.numel() == 0) return;
      if (at >= made.size() || !made[at].defined()) return drop(t);
      at::Tensor value = made[at];
      if (results->uniform && op.uniform == Uniform::sum) {
        const double scale = results->returned.back().toDouble() / static_cast<double>(t.numel());
        value = value.mul(scale).to(t.scalar_type());
      }
      store(place(t), value, results->worth, results->uniform);
    });
  }
  if (results)
    for (const Write& w : results->writes) store(w, w.value, results->worth, results->uniform);
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  const Op* op = known(fn);
  if (!op) return nullptr;
  if (running.depth < kMostRunning) running.ops[running.depth] = op;
  running.depth++;
  say_reader(nullptr);
  const bool noted = emu_noting && op->noted && !call_is_open();
  if ((op->ignored && !noted) || modes()) return nullptr; // the first operator makes the arena
  auto args = fn.inputs();
  const size_t wanted = op->writes.size();
  if (args.size() < wanted) return nullptr;
  try {
    // A boxed call shows the whole stack. (Before torch 2.6, `inputs` is of const values.)
    if (noted) call_begins(*op, c10::ArrayRef<c10::IValue>(args.data() + (args.size() - wanted), wanted), running.depth);
    if (op->ignored) return nullptr;
    return start(*op, c10::ArrayRef<c10::IValue>(args.data() + (args.size() - wanted), wanted));
  } catch (...) {
    return nullptr; // the operator itself will say what is wrong
  }
}

// Whether the allocator makes new memory unknown. Tried a few times: it starts late.
bool watched() {
  static std::atomic<int> tries{0};
  static std::atomic<bool> done{false};
  if (done.load(std::memory_order_relaxed)) return true;
  if (tries.load(std::memory_order_relaxed) > 100) return false;
  std::lock_guard<std::mutex> guard(lock);
  tries++;
  if (!done) done = watch_memory();
  return done;
}

void on_end(const at::RecordFunction& fn, at::ObserverContext* context) {
  const Op* op = known(fn);
  if (!op) return;
  if (emu_noting && call_is_open()) {
    const auto& outs = fn.outputs();
    const size_t wanted = std::min(outs.size(), op->fresh.size());
    call_ends(running.depth, c10::ArrayRef<c10::IValue>(outs).slice(outs.size() - wanted));
  }
  running.depth--;
  say_reader(nullptr);
  if (op->ignored) return;
  if (op->name == "copy_") emu_values_limit(0);
  if (op->rule || op->name == "_coalesce") emu_values_expect_nothing();
  if (!emu_values_ready() || (!context && watched()) || modes()) return;
  const auto& outs = fn.outputs();
  const size_t wanted = op->fresh.size();
  if (outs.size() < wanted && !context) return;
  try {
    const c10::ArrayRef<c10::IValue> all(outs);
    finish(*op, outs.size() < wanted ? all : all.slice(outs.size() - wanted), static_cast<Results*>(context));
  } catch (...) { // a destructor calls this
  }
}

struct Start {
  Start() {
    // A forked worker of a data loader must not find it locked by a thread that it does not have.
    pthread_atfork([] { lock.lock(); }, [] { lock.unlock(); }, [] { lock.unlock(); });
    at::addGlobalCallback(at::RecordFunctionCallback(on_start, on_end)
                              .needsInputs(true)
                              .needsOutputs(true)
                              .scopes({at::RecordScope::FUNCTION}));
    emu_values_computes(1);
  }
} start_now;
} // namespace
} // namespace emulated
