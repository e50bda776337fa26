// The questions torch asks an accelerator that is not built into it.
#pragma once

#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "generator.h"
#include "memory.h"

namespace simulated_npu {

struct NpuHooks final : at::PrivateUse1HooksInterface {
  // These two are not marked override: torch 2.6 does not have them yet.
  bool isBuilt() const { return true; }
  bool isAvailable() const { return device_total > 0; }

  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(device_total);
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    current_index = resolve_index(index).index();
  }
  c10::DeviceIndex getCurrentDevice() const override { return current_index; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex before = current_index;
    setCurrentDevice(index);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_index : exchangeDevice(index);
  }
  bool isPinnedPtr(const void* memory) const override {
    return PinnedAllocator::is_pinned(memory);
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  c10::Device getDeviceFromPtr(void*) const override {
    return c10::Device(kNpu, current_index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index < 0 ? current_index : index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return new_generator(index < 0 ? current_index : index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage,
                              size_t nbytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), nbytes);
  }
};

}  // namespace simulated_npu
