// What the files that compute small operators share. values.cpp says how it works.
#pragma once
#include "values.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace emulated {

// Operators on more elements are not computed. One-hot routing of 8192 tokens over 256 experts is
// 16 Mi; floats rarely steer anything.
constexpr int64_t kMostIntegers = 16 << 20;
constexpr int64_t kMostFloats = 64 << 10;
constexpr size_t kWrittenBytes = 64 << 10; // a larger uniform tensor is not written to memory

struct Call;
struct Results;
// Fills the results itself; false: the usual way.
using Rule = bool (*)(const Call&, Results&);

enum class Uniform { no, elementwise, reduction, sum };

// What is known of an operator, made once.
struct Op {
  explicit Op(const c10::OperatorHandle& h) : handle(h) {}
  c10::OperatorHandle handle;
  std::string name;              // without namespace and overload
  bool ignored = false;          // writes nothing, or only through other operators
  bool computable = false;       // by the same operator on the CPU
  bool random = false;
  bool overwrites = false;       // does not read what it writes to
  bool fills = false;            // with one value
  bool truth = false;            // makes integers or booleans of floats
  bool compares = false;         // makes a mask
  bool reads = false;            // reads what it was asked for; any other operator reads a size
  bool checks = false;           // reads whether another operator worked
  bool seeds = false;            // reads a seed
  bool selects = false;          // floats that are known stay known beside unknown ones
  bool factory = false;          // takes no tensor
  bool noted = false;            // its calls are noted, with what they launch
  Uniform uniform = Uniform::no; // can be computed on one element if all are equal
  Rule rule = nullptr;
  std::vector<bool> writes;      // per argument
  std::vector<bool> out;         // per argument: gets the result, content and size do not matter
  std::vector<bool> fresh;       // per return: a new tensor or an `out` argument
  bool mutates = false;
  mutable std::atomic<int> failures{0}, successes{0};
};

struct Call {
  const Op& op;
  c10::ArrayRef<c10::IValue> args;
  bool large; // some tensor is too large to be computed
  int worth;  // of the inputs together, if not large
};

// Where to write a tensor that exists already.
struct Write {
  uint64_t at;
  std::vector<int64_t> sizes, strides;
  c10::ScalarType type;
  at::Tensor value;
};

struct Results : at::ObserverContext {
  std::vector<c10::IValue> returned; // None: unknown
  std::vector<Write> writes;
  int worth = EMU_UNKNOWN;
  bool uniform = false; // values have one element, which stands for all
};

const Op* known(const at::RecordFunction& fn); // nullptr: not of interest

bool plain(const at::Tensor& t); // dense, emulated CUDA, no wrapper
bool integral(const at::Tensor& t);
uint64_t address(const at::Tensor& t);
uint64_t span(const at::Tensor& t); // bytes from the first to the last element
int state(const at::Tensor& t);     // after this its values are in memory
at::Tensor alias(const at::Tensor& t); // the CPU's view of the same memory
void drop(const at::Tensor& t);
void store(const Write& w, const at::Tensor& value, int worth, bool uniform);
Write place(const at::Tensor& t);
template <class F>
void each_tensor(const c10::IValue& v, F f) {
  if (v.isTensor()) {
    f(v.toTensor());
  } else if (v.isList()) {
    for (const c10::IValue& item : v.toListRef())
      if (item.isTensor()) f(item.toTensor());
      else if (!item.isNone()) break;
  }
}

// Runs the operator on CPU tensors: false if it cannot.
bool compute(const Call& call, Results& results);
bool compute_uniform(const Call& call, Results& results);
// Makes what is allocated unknown; false: not yet, or not with this allocator.
bool watch_memory();
// --values: makes a mask of values that nobody knows, a share of it true; false: the usual way.
bool mask_of_unknown(const Call& call, Results& results);
// How many indices differ is read next.
void expect_coalesced(const at::Tensor& sparse);
// Whether it asks for NaN or infinity: an unknown number is finite.
bool is_about_finite(const Call& call);
Rule rule_of(const std::string& name, const std::string& overload);

// Notes the calls of operators that launch something (values_calls.cpp). `depth`: of running operators.
void call_begins(const Op& op, c10::ArrayRef<c10::IValue> args, size_t depth);
void call_ends(size_t depth, c10::ArrayRef<c10::IValue> outs);
bool call_is_open();

// No autograd, no autocast, no modes, no callbacks, no warnings while computing.
struct Quiet {
  Quiet();
  ~Quiet();
  struct State;
  std::unique_ptr<State> state;
};
} // namespace emulated
