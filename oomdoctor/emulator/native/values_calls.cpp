// Notes the calls of operators that launch something: which operator, on tensors of which shapes.
//
// Of operators that call others, the outermost one is noted that does something itself, which is what
// a dispatch mode of torch sees. A call is a line of numbers while it runs; if it has launched
// something, and no call before was like it, it becomes a line of JSON.
#include "launches.h"
#include "values_torch.h"

#include <mutex>
#include <sstream>
#include <unordered_map>

namespace emulated {
namespace {

// The tags of what follows in a line of numbers.
enum Tag : int64_t { kNothing, kTensor, kList, kInt, kBool, kFloat };
constexpr size_t kMostItems = 4096; // of a list of tensors

thread_local struct {
  const Op* op = nullptr;
  size_t depth = 0;
  std::vector<int64_t> numbers;
  bool wrapped = false; // some tensor holds others, on which the operator is called in turn
} open_call;

void add(const c10::IValue& v);

void add_tensor(const at::Tensor& t) {
  auto& out = open_call.numbers;
  if (!t.defined()) return out.push_back(kNothing);
  if (t.key_set().has(c10::DispatchKey::Python)) open_call.wrapped = true;
  if (t.layout() != c10::kStrided || t.unsafeGetTensorImpl()->has_symbolic_sizes_strides())
    return out.push_back(kNothing);
  const auto sizes = t.sizes(), strides = t.strides();
  out.insert(out.end(), {kTensor, static_cast<int64_t>(t.scalar_type()), t.is_cuda(), static_cast<int64_t>(sizes.size())});
  out.insert(out.end(), sizes.begin(), sizes.end());
  out.insert(out.end(), strides.begin(), strides.end());
}

void add(const c10::IValue& v) {
  auto& out = open_call.numbers;
  if (v.isTensor()) {
    add_tensor(v.toTensor());
  } else if (v.isInt()) {
    out.insert(out.end(), {kInt, v.toInt()});
  } else if (v.isBool()) {
    out.insert(out.end(), {kBool, v.toBool()});
  } else if (v.isDouble()) {
    out.push_back(kFloat); // rates change with each step, and no cost depends on them
  } else if (v.isIntList()) {
    const auto items = v.toIntVector();
    out.insert(out.end(), {kList, static_cast<int64_t>(items.size())});
    for (int64_t item : items) out.insert(out.end(), {kInt, item});
  } else if (v.isList()) {
    const auto items = v.toListRef();
    const size_t n = std::min(items.size(), kMostItems);
    out.insert(out.end(), {kList, static_cast<int64_t>(n)});
    for (size_t i = 0; i < n; i++) add(items[i]);
  } else {
    out.push_back(kNothing);
  }
}

const int64_t* write_item(std::ostream& out, const int64_t* at) {
  switch (*at++) {
    case kTensor: {
      const int64_t type = at[0], cuda = at[1], n = at[2];
      at += 3;
      out << "{\"dtype\":\"" << c10::toString(static_cast<c10::ScalarType>(type)) << "\",\"cuda\":" << (cuda ? "true" : "false");
      for (const char* name : {"sizes", "strides"}) {
        out << ",\"" << name << "\":[";
        for (int64_t i = 0; i < n; i++) out << (i ? "," : "") << *at++;
        out << ']';
      }
      out << '}';
      return at;
    }
    case kList: {
      const int64_t n = *at++;
      out << '[';
      for (int64_t i = 0; i < n; i++) {
        if (i) out << ',';
        at = write_item(out, at);
      }
      out << ']';
      return at;
    }
    case kInt: out << *at++; return at;
    case kBool: out << (*at++ ? "true" : "false"); return at;
    case kFloat: out << "0.0"; return at;
    default: out << "null"; return at;
  }
}

// Calls are few thousands of kinds at most: that two have the same hash of 64 bits is out of the question.
uint64_t hash_of(const std::vector<int64_t>& numbers) {
  uint64_t hash = 0x9E3779B97F4A7C15ull;
  for (int64_t n : numbers) {
    hash = (hash ^ static_cast<uint64_t>(n)) * 0xFF51AFD7ED558CCDull;
    hash ^= hash >> 32;
  }
  return hash;
}

std::mutex calls_lock;
std::unordered_map<uint64_t, int64_t> call_lines;
int calls_generation = 0;

int64_t line_of(const Op& op, const std::vector<int64_t>& numbers) {
  const uint64_t hash = hash_of(numbers);
  std::lock_guard<std::mutex> guard(calls_lock);
  if (calls_generation != emu_note_generation()) call_lines.clear(), calls_generation = emu_note_generation();
  int64_t& line = call_lines[hash];
  if (!line) {
    std::ostringstream text;
    std::ostringstream schema;
    schema << op.handle.schema();
    text << "{\"schema\":\"";
    for (char c : schema.str()) { // a default may be a text
      if (c == '"' || c == '\\') text << '\\';
      text << c;
    }
    text << "\",\"args\":[";
    const int64_t *at = numbers.data() + 2, *end = numbers.data() + numbers.size();
    for (int64_t i = 0; i < numbers[1]; i++) {
      if (i) text << ',';
      at = write_item(text, at);
    }
    text << "],\"results\":[";
    for (bool first = true; at < end; first = false) {
      if (!first) text << ',';
      at = write_item(text, at);
    }
    text << "]}";
    line = emu_call_line(text.str().c_str());
  }
  return line;
}
} // namespace

bool call_is_open() { return open_call.op != nullptr; }

void call_begins(const Op& op, c10::ArrayRef<c10::IValue> args, size_t depth) {
  open_call.wrapped = false;
  open_call.numbers.clear();
  open_call.numbers.insert(open_call.numbers.end(), {reinterpret_cast<int64_t>(&op), static_cast<int64_t>(args.size())});
  for (const c10::IValue& v : args) add(v);
  if (open_call.wrapped) return;
  open_call.op = &op, open_call.depth = depth;
  emu_call_begins();
}

void call_ends(size_t depth, c10::ArrayRef<c10::IValue> outs) {
  if (depth != open_call.depth) return;
  const Op& op = *open_call.op;
  open_call.op = nullptr;
  if (!emu_call_launches()) return emu_call_dropped();
  try {
    for (const c10::IValue& v : outs) add(v);
    emu_call_ended(line_of(op, open_call.numbers));
  } catch (...) {
    emu_call_dropped();
  }
}
} // namespace emulated
