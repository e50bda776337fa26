// CPU tensors over the memory of simulated NPU tensors, and back. Nothing is copied.
#pragma once

#include <ATen/ATen.h>

#include <utility>

#include "memory.h"

namespace simulated_npu {

// Returns a storage on `type` over the same memory; it keeps the owner alive.
inline c10::Storage alias_storage(const c10::Storage& storage, c10::DeviceType type) {
  c10::StorageImpl* owner = storage.unsafeGetStorageImpl();
  c10::raw::intrusive_ptr::incref(owner);
  const auto drop_owner = +[](void* context) {
    c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(context));
  };
  c10::DataPtr memory(const_cast<void*>(owner->data()), owner, drop_owner,
                      c10::Device(type));
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), owner->nbytes(), std::move(memory),
      c10::GetAllocator(type), /*resizable=*/true));
}

// Returns a tensor with the shape, strides and flags of `like` over `storage`.
// at::from_blob would lose the offset and could not be resized.
inline at::Tensor tensor_over(c10::Storage storage, c10::DispatchKey key,
                              const c10::TensorImpl* like) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), like->dtype());
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like->sizes(), like->strides(), like->storage_offset());
  if (like->is_wrapped_number()) {
    impl->set_wrapped_number(true);
  }
  if (like->is_conj()) {
    impl->_set_conj(true);
  }
  if (like->is_neg()) {
    impl->_set_neg(true);
  }
  return tensor;
}

inline bool on_npu(const at::Tensor& tensor) { return tensor.device().type() == kNpu; }

inline at::Tensor cpu_alias(const at::Tensor& npu) {
  return tensor_over(alias_storage(npu.storage(), c10::kCPU), c10::DispatchKey::CPU,
                     npu.unsafeGetTensorImpl());
}

// The same for a tensor that may be on the CPU already.
inline at::Tensor as_cpu(const at::Tensor& tensor) {
  return on_npu(tensor) ? cpu_alias(tensor) : tensor;
}

}  // namespace simulated_npu
