// Memory of the simulated devices: host memory, counted per device.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/version.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "devices.h"

// c10::DeviceAllocator came with torch 2.9; torch.accelerator's memory calls need it.
#define SIMULATED_NPU_TORCH_2_9 \
  (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 9))

namespace simulated_npu {

// What a DataPtr of a simulated device owns: memory of its own, or the storage of a
// result that a CPU kernel made.
struct Block {
  void* own_memory;
  c10::Storage cpu_result;
  c10::DeviceIndex device;
  size_t nbytes;
};

inline void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  release(block->device, block->nbytes);
  if (block->own_memory != nullptr) {
    c10::free_cpu(block->own_memory);
  }
  delete block;
}

inline c10::DataPtr no_memory(c10::DeviceIndex device) {
  return {nullptr, nullptr, &free_block, c10::Device(kNpu, device)};
}

inline c10::DataPtr allocate_on(c10::DeviceIndex device, size_t nbytes) {
  if (nbytes == 0) {
    return no_memory(device);
  }
  account(device, nbytes);
  void* memory = nullptr;
  try {
    memory = c10::alloc_cpu(nbytes);
  } catch (...) {
    release(device, nbytes);
    throw;
  }
  auto* block = new Block{memory, {}, device, nbytes};
  return {memory, block, &free_block, c10::Device(kNpu, device)};
}

// Makes memory that a CPU kernel allocated count as memory of a device; no copy.
inline c10::DataPtr adopt(const c10::Storage& cpu, c10::DeviceIndex device) {
  const size_t nbytes = cpu.nbytes();
  if (nbytes == 0) {
    return no_memory(device);
  }
  account(device, nbytes);
  auto* block = new Block{nullptr, cpu, device, nbytes};
  return {const_cast<void*>(cpu.data()), block, &free_block, c10::Device(kNpu, device)};
}

#if SIMULATED_NPU_TORCH_2_9
using AllocatorBase = c10::DeviceAllocator;
#else
using AllocatorBase = c10::Allocator;
#endif

struct NpuAllocator final : AllocatorBase {
  c10::DataPtr allocate(size_t nbytes) override {
    return allocate_on(current_index, nbytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* dest, const void* src, std::size_t nbytes) const override {
    std::memcpy(dest, src, nbytes);
  }

#if SIMULATED_NPU_TORCH_2_9
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex index) override {
    device_states[index].peak = device_states[index].allocated.load();
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(
      c10::DeviceIndex index) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    const DeviceState& state = device_states[index];
    for (auto* figure :
         {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes}) {
      (*figure)[0].current = state.allocated;
      (*figure)[0].peak = state.peak;
    }
    stats.num_ooms = state.num_ooms;
    return stats;
  }
  // Not marked override: torch 2.9 does not have it yet.
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) {
    const DeviceState& state = device_states[index];
    return {size_t(state.limit - state.allocated), size_t(state.limit.load())};
  }
#endif
};

inline NpuAllocator npu_allocator;

inline c10::Storage new_storage(size_t nbytes, c10::DataPtr memory) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), nbytes, std::move(memory), &npu_allocator,
      /*resizable=*/true));
}

inline void resize_storage(c10::StorageImpl* storage, size_t nbytes) {
  if (nbytes == storage->nbytes()) {
    return;
  }
  c10::DataPtr memory = allocate_on(storage->device().index(), nbytes);
  if (memory.get() != nullptr && storage->data() != nullptr) {
    std::memcpy(memory.get(), storage->data(), std::min(nbytes, storage->nbytes()));
  }
  storage->set_data_ptr_noswap(std::move(memory));
  storage->set_nbytes(nbytes);
}

// Pinned host memory: ordinary memory that is remembered, so that is_pinned() is true.
struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    void* memory = c10::alloc_cpu(nbytes);
    if (memory != nullptr) {
      const std::lock_guard<std::mutex> lock(mutex());
      addresses().insert(memory);
    }
    return {memory, memory, &unpin, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* dest, const void* src, std::size_t nbytes) const override {
    std::memcpy(dest, src, nbytes);
  }

  static bool is_pinned(const void* memory) {
    const std::lock_guard<std::mutex> lock(mutex());
    return addresses().count(memory) > 0;
  }

 private:
  static void unpin(void* memory) {
    if (memory == nullptr) {
      return;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex());
      addresses().erase(memory);
    }
    c10::free_cpu(memory);
  }
  // Never destroyed: tensors may be freed while the interpreter exits.
  static std::mutex& mutex() {
    static auto* instance = new std::mutex();
    return *instance;
  }
  static std::unordered_set<const void*>& addresses() {
    static auto* instance = new std::unordered_set<const void*>();
    return *instance;
  }
};

inline PinnedAllocator pinned_allocator;

}  // namespace simulated_npu
