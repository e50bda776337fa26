// torch.autocast("npu"): the casts torch applies on every accelerator.
#pragma once

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

// torch's macros use names of namespace at without qualifying them.
namespace at::simulated_npu_autocast {

#define SIMULATED_NPU_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define SIMULATED_NPU_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define SIMULATED_NPU_FP32_OUT(...) \
  KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define SIMULATED_NPU_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(SIMULATED_NPU_LOWER)
  AT_FORALL_FP32(SIMULATED_NPU_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(SIMULATED_NPU_FP32_OUT)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(
      KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(SIMULATED_NPU_PROMOTE)
}

#undef SIMULATED_NPU_LOWER
#undef SIMULATED_NPU_FP32
#undef SIMULATED_NPU_FP32_OUT
#undef SIMULATED_NPU_PROMOTE

}  // namespace at::simulated_npu_autocast
