// Runs an operator on the CPU: on the emulated memory itself, or on one element that stands for all.
#include "values_torch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

namespace emulated {
namespace {

// The most elements that the result may have, from the shapes of the inputs.
double result_elements(const Call& call) {
  std::vector<double> sizes; // broadcast, from the last dimension
  double largest = 0, indexed = 1, first = 0, total = 0;
  for (const c10::IValue& arg : call.args)
    each_tensor(arg, [&](const at::Tensor& t) {
      if (!t.defined()) return;
      const double numel = static_cast<double>(t.numel());
      if (first == 0) first = numel;
      else if (integral(t)) indexed *= numel;
      largest = std::max(largest, numel);
      total += numel;
      for (int64_t i = 0; i < t.dim(); i++) {
        const double size = static_cast<double>(t.size(t.dim() - 1 - i));
        if (static_cast<size_t>(i) == sizes.size()) sizes.push_back(size);
        else sizes[static_cast<size_t>(i)] = std::max(sizes[static_cast<size_t>(i)], size);
      }
    });
  const std::string& name = call.op.name;
  if (name == "index" || name == "index_select" || name == "embedding" || name == "take")
    return first * indexed; // a bound; rows of a table are usually fewer
  if (name == "cat") return total;
  double broadcast = 1;
  for (double size : sizes) broadcast *= size;
  // arange, eye, linspace, ...: the size is in the numbers.
  if (name == "arange" || name == "range" || name == "linspace" || name == "logspace" || name == "eye" ||
      name == "randperm" || name == "tril_indices" || name == "triu_indices") {
    double product = 1, reach = 0;
    std::vector<double> numbers;
    for (const c10::IValue& arg : call.args)
      if (arg.isScalar()) numbers.push_back(arg.toScalar().toDouble());
    if (name == "arange" && numbers.size() == 3 && numbers[2] != 0) return std::abs((numbers[1] - numbers[0]) / numbers[2]);
    for (double n : numbers) product *= std::max(1.0, std::abs(n)), reach += std::abs(n);
    return name == "eye" || name.back() == 's' ? product : reach;
  }
  return std::max(largest, broadcast);
}

struct Stand {
  at::Tensor value;
  int worth;
};

// One element for a tensor whose elements are all equal; unknown ones read as zeros.
bool stand_in(const at::Tensor& t, Stand& out) {
  const std::vector<int64_t> ones(static_cast<size_t>(t.dim()), 1);
  const auto options = at::TensorOptions().dtype(t.scalar_type()).device(c10::kCPU);
  if (t.is_cpu()) {
    if (t.numel() != 1) return false;
    out = {t.reshape(ones), EMU_KNOWN};
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) out.value.unsafeGetTensorImpl()->set_wrapped_number(true);
    return true;
  }
  if (t.numel() == 0) return false;
  if (t.numel() <= kMostFloats) {
    const int worth = state(t);
    const at::Tensor all = alias(t);
    at::Tensor first = all;
    for (int64_t i = 0; i < t.dim(); i++) first = first.narrow(i, 0, 1);
    if (t.numel() > 1 && !all.eq(first).all().item<bool>()) return false;
    out = {first.clone(), worth};
    return true;
  }
  unsigned char pattern[8];
  const int worth = emu_values_state(address(t), span(t), 0, pattern);
  if (t.element_size() > 8) return false;
  if (worth == EMU_UNKNOWN && integral(t) && emu_values_any(address(t), span(t))) return false;
  out = {at::zeros(ones, options), worth};
  memcpy(out.value.mutable_data_ptr(), pattern, t.element_size());
  return true;
}

// The arguments for the CPU; `convert(tensor, argument)` gives false to give up.
template <class F>
bool convert(const Call& call, c10::Stack& stack, F convert_tensor) {
  const auto& arguments = call.op.handle.schema().arguments();
  for (size_t i = 0; i < call.args.size(); i++) {
    const c10::IValue& arg = call.args[i];
    at::Tensor converted;
    if (arg.isTensor()) {
      if (!arg.toTensor().defined()) {
        stack.push_back(arg);
        continue;
      }
      if (!convert_tensor(arg.toTensor(), i, converted)) return false;
      stack.push_back(std::move(converted));
    } else if (arg.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const c10::IValue& item : arg.toListRef()) {
        if (!convert_tensor(item.toTensor(), i, converted)) return false;
        list.push_back(std::move(converted));
      }
      stack.push_back(std::move(list));
    } else if (arg.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& item : arg.toListRef()) {
        if (item.isNone() || !item.toTensor().defined()) {
          list.push_back(std::optional<at::Tensor>());
          continue;
        }
        if (!convert_tensor(item.toTensor(), i, converted)) return false;
        list.push_back(std::optional<at::Tensor>(std::move(converted)));
      }
      stack.push_back(std::move(list));
    } else if (arg.isDevice()) {
      stack.push_back(c10::Device(c10::kCPU));
    } else if (arg.isGenerator()) {
      return false;
    } else if (arguments[i].name() == "pin_memory") {
      stack.push_back(c10::IValue());
    } else {
      stack.push_back(arg);
    }
  }
  return true;
}

bool run(const Op& op, c10::Stack& stack) {
  try {
    op.handle.callBoxed(&stack);
    op.successes++;
    emu_values_computed();
    return true;
  } catch (...) { // the CUDA operator says what is wrong, if anything is
    op.failures++;
    return false;
  }
}
} // namespace

bool compute(const Call& call, Results& results) {
  const Op& op = call.op;
  if (!op.computable || (op.failures > 50 && op.successes == 0)) return false;
  if (result_elements(call) > static_cast<double>(kMostIntegers)) return false;
  c10::Stack stack;
  const bool converted = convert(call, stack, [&](const at::Tensor& t, size_t i, at::Tensor& to) {
    if (t.is_cpu()) {
      to = t;
      return !op.writes[i];
    }
    if (!plain(t)) return false;
    if (op.out[i]) {
      to = at::empty({0}, at::TensorOptions().dtype(t.scalar_type()).device(c10::kCPU));
      return true;
    }
    to = alias(t);
    if (op.writes[i]) { // CUDA may use other operators on it meanwhile: written at the end
      to = op.overwrites ? at::empty(t.sizes(), to.options()) : to.clone();
      results.writes.push_back(place(t));
      results.writes.back().value = to;
    }
    return true;
  });
  if (!converted || !run(op, stack)) {
    results.writes.clear();
    return false;
  }
  results.returned = std::move(stack);
  results.worth = call.worth;
  return true;
}

bool compute_uniform(const Call& call, Results& results) {
  const Op& op = call.op;
  if (op.uniform == Uniform::no || !op.computable) return false;
  c10::Stack stack;
  int worth = EMU_KNOWN;
  double scale = 0;
  const bool converted = convert(call, stack, [&](const at::Tensor& t, size_t i, at::Tensor& to) {
    if (t.is_cuda() && !plain(t)) return false;
    if (op.out[i]) {
      to = at::empty({0}, at::TensorOptions().dtype(t.scalar_type()).device(c10::kCPU));
      return true;
    }
    if (op.writes[i] && op.overwrites) {
      const std::vector<int64_t> ones(static_cast<size_t>(t.dim()), 1);
      to = at::empty(ones, at::TensorOptions().dtype(t.scalar_type()).device(c10::kCPU));
    } else {
      Stand stand;
      if (!stand_in(t, stand)) return false;
      worth = std::min(worth, stand.worth);
      // Unknown floats make unknown floats: nothing to compute.
      if (worth == EMU_UNKNOWN && !op.truth && !(op.mutates && integral(t))) return false;
      to = stand.value;
      if (i == 0) scale = static_cast<double>(t.numel());
    }
    if (op.writes[i]) {
      results.writes.push_back(place(t));
      results.writes.back().value = to;
    }
    return true;
  });
  if (!converted || !run(op, stack)) {
    results.writes.clear();
    return false;
  }
  results.returned = std::move(stack);
  results.worth = worth;
  results.uniform = true;
  if (op.uniform == Uniform::sum) results.returned.push_back(scale);
  return true;
}
} // namespace emulated
