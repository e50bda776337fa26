// Kinds of tensors that the simulated NPU does not have raise one sentence.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace simulated_npu {

inline void refuse_sparse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "The simulated NPU does not do sparse tensors (", op.operator_name(),
      "). Use dense tensors, or .cpu() for this part of the program.");
}

inline void refuse_quantized(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "The simulated NPU does not do quantized tensors (", op.operator_name(),
      "). Use float tensors, or .cpu() for this part of the program.");
}

inline void refuse_nested(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "The simulated NPU does not do nested tensors of strided layout (",
      op.operator_name(), "). Use layout=torch.jagged, or padded dense tensors.");
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_quantized>());
}
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_nested>());
}

// These make such tensors out of dense ones, and torch has kernels of them for every
// device, which win over a fallback.
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  for (const char* name :
       {"_sparse_compressed_tensor_unsafe", "_sparse_csr_tensor_unsafe",
        "_sparse_csc_tensor_unsafe", "_sparse_bsr_tensor_unsafe",
        "_sparse_bsc_tensor_unsafe", "sparse_compressed_tensor.comp_plain_value_size",
        "sparse_compressed_tensor.comp_plain_value"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
  }
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name : {"_nested_tensor_from_tensor_list",
                           "_nested_tensor_from_mask", "_nested_view_from_buffer"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_nested>());
  }
}

}  // namespace simulated_npu
