// The few kernels that cannot be left to the fallback: making memory, copying between
// devices, changing a tensor's storage, and random operators without a generator.
#pragma once

#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>

#include <optional>
#include <tuple>
#include <utility>

#include "fallback.h"

namespace simulated_npu {

inline const c10::DispatchKeySet kNpuKey{c10::DispatchKey::PrivateUse1};

inline at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout> layout,
                        std::optional<c10::Device> device,
                        std::optional<bool> pin_memory,
                        std::optional<at::MemoryFormat> format) {
  TORCH_CHECK_NOT_IMPLEMENTED(!layout.has_value() || *layout == c10::kStrided,
                              "The simulated NPU does not do tensors of layout ",
                              *layout,
                              ". Use dense tensors, or .cpu() for this part of the "
                              "program.");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  const c10::DeviceGuard guard(resolve(device));
  return at::detail::empty_generic(size, &npu_allocator, kNpuKey,
                                   c10::dtype_or_default(dtype), format);
}

inline at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                                std::optional<at::ScalarType> dtype,
                                std::optional<at::Layout>,
                                std::optional<c10::Device> device,
                                std::optional<bool>) {
  const c10::DeviceGuard guard(resolve(device));
  return at::detail::empty_strided_generic(size, stride, &npu_allocator, kNpuKey,
                                           c10::dtype_or_default(dtype));
}

inline at::Tensor copy_from(const at::Tensor& source, const at::Tensor& destination,
                            bool /*non_blocking*/) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  as_cpu(destination).copy_(as_cpu(source));
  return destination;
}

inline at::Tensor& copy_into(at::Tensor& self, const at::Tensor& source,
                             bool /*non_blocking*/) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  as_cpu(self).copy_(as_cpu(source));
  return self;
}

// Gives a tensor's storage the bytes its sizes and strides reach.
inline void grow_storage(c10::TensorImpl* tensor) {
  size_t needed = 0;
  if (tensor->numel() > 0) {
    needed = at::detail::computeStorageNbytes(tensor->sizes(), tensor->strides(),
                                              tensor->dtype().itemsize(),
                                              tensor->storage_offset());
  }
  if (needed > tensor->storage().nbytes()) {
    resize_storage(tensor->storage().unsafeGetStorageImpl(), needed);
  }
}

inline const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size,
                                std::optional<at::MemoryFormat> format) {
  c10::TensorImpl* tensor = self.unsafeGetTensorImpl();
  if (tensor->sizes() != size) {
    tensor->set_sizes_contiguous(size);
  }
  if (format.has_value() && *format != at::MemoryFormat::Preserve) {
    tensor->empty_tensor_restride(*format);
  }
  grow_storage(tensor);
  return self;
}

inline at::Tensor& set_storage_view(at::Tensor& self, at::Storage storage,
                                    int64_t offset, c10::IntArrayRef size,
                                    c10::IntArrayRef stride) {
  TORCH_CHECK(storage.device_type() == kNpu,
              "cannot set the storage of an NPU tensor to a storage on ",
              storage.device());
  c10::TensorImpl* tensor = self.unsafeGetTensorImpl();
  tensor->set_storage_keep_dtype(std::move(storage));
  tensor->set_storage_offset(offset);
  if (stride.size() == size.size() && stride.data() != nullptr) {
    tensor->set_sizes_and_strides(size, stride);
  } else {
    tensor->set_sizes_contiguous(size);
  }
  grow_storage(tensor);
  return self;
}

inline at::Tensor& set_storage(at::Tensor& self, at::Storage storage) {
  const auto numel = static_cast<int64_t>(storage.nbytes() / self.dtype().itemsize());
  return set_storage_view(self, std::move(storage), 0, {numel}, {int64_t{1}});
}

inline at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage_view(self, source.storage(), source.storage_offset(),
                          source.sizes(), source.strides());
}

inline at::Tensor& set_empty(at::Tensor& self) {
  c10::Storage nothing = new_storage(0, no_memory(self.device().index()));
  return set_storage_view(self, std::move(nothing), 0, {0}, {int64_t{1}});
}

inline void record_stream(at::Tensor&, c10::Stream) {}

// torch's CPU kernel draws from the CPU's default generator, which a device must leave
// alone; dropout is the one random operator that takes no generator.
inline std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input,
                                                         double p,
                                                         std::optional<bool> train) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  if (!train.value_or(true) || p == 0) {
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  }
  const double keep = 1 - p;
  const at::Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  mask.bernoulli_(keep);
  return {input.mul(mask).mul_(keep == 0 ? 0.0 : 1.0 / keep), mask};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(fallback_kernel()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("copy_", copy_into);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage_storage_offset", set_storage_view);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_", set_empty);
  m.impl("record_stream", record_stream);
  m.impl("native_dropout", native_dropout);
  // These have a kernel for any device, which a fallback does not replace by itself:
  // that of a convolution raises, the others make many small calls of one.
  for (const char* name : {"convolution", "convolution_backward", "_convolution",
                           "native_layer_norm", "native_group_norm"}) {
    m.impl(name, fallback_kernel());
  }
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (is_foreach(name.name)) {
      const std::string overload =
          name.overload_name.empty() ? "" : "." + name.overload_name;
      m.impl((name.name.substr(std::string("aten::").size()) + overload).c_str(),
             fallback_kernel());
    }
  }
}

}  // namespace simulated_npu
