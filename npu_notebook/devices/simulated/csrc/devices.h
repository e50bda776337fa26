// Simulated devices: how many there are, which one is current, and what each holds.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Device.h>
#include <c10/core/impl/alloc_cpu.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <optional>
#include <string>

namespace simulated_npu {

constexpr auto kNpu = c10::DeviceType::PrivateUse1;
constexpr int kMaxDevices = 64;
constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kMiB = int64_t{1} << 20;

struct DeviceState {
  std::atomic<int64_t> allocated{0};     // bytes in use now
  std::atomic<int64_t> peak{0};          // most bytes in use since the last reset
  std::atomic<int64_t> limit{2 * kGiB};  // bytes this device has
  std::atomic<int64_t> num_allocations{0};
  std::atomic<int64_t> num_ooms{0};
};

inline std::array<DeviceState, kMaxDevices> device_states;
inline int device_total = 0;

// A new thread starts on device 0, as threads do on CUDA devices and NPUs.
inline thread_local c10::DeviceIndex current_index = 0;

// Returns the device with an index: the current one where none is given.
inline c10::Device resolve(std::optional<c10::Device> device) {
  const bool indexed = device.has_value() && device->has_index();
  const c10::DeviceIndex index = indexed ? device->index() : current_index;
  TORCH_CHECK(index >= 0 && index < device_total, "Invalid NPU device index ",
              int{index}, ": this process has ", device_total,
              " simulated NPU(s), numbered from 0.");
  return c10::Device(kNpu, index);
}

inline c10::Device resolve_index(int64_t index) {
  TORCH_CHECK(index >= 0 && index < device_total, "Invalid NPU device index ", index,
              ": this process has ", device_total,
              " simulated NPU(s), numbered from 0.");
  return c10::Device(kNpu, static_cast<c10::DeviceIndex>(index));
}

inline DeviceState& state_of(int64_t index) {
  return device_states[resolve_index(index).index()];
}

inline std::string readable(int64_t nbytes) {
  std::array<char, 32> text{};
  if (nbytes >= kGiB) {
    std::snprintf(text.data(), text.size(), "%.2f GiB", double(nbytes) / double(kGiB));
  } else {
    std::snprintf(text.data(), text.size(), "%.2f MiB", double(nbytes) / double(kMiB));
  }
  return text.data();
}

// Device allocators hand out blocks of 512 bytes; memory figures show it.
inline int64_t rounded(size_t nbytes) {
  return static_cast<int64_t>((nbytes + 511) / 512 * 512);
}

// Counts nbytes as used by a device, or raises torch.OutOfMemoryError.
inline void account(c10::DeviceIndex index, size_t nbytes) {
  DeviceState& state = device_states[index];
  const int64_t wanted = rounded(nbytes);
  const int64_t now = state.allocated.fetch_add(wanted) + wanted;
  const int64_t limit = state.limit;
  if (now > limit) {
    state.allocated -= wanted;
    state.num_ooms++;
    const int64_t before = now - wanted;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "NPU out of memory. Tried to allocate ",
                     readable(wanted), " (NPU ", int{index}, "; ", readable(limit),
                     " total capacity; ", readable(before), " already allocated; ",
                     readable(limit - before),
                     " free). This is a simulated NPU: NPU_NOTEBOOK_SIMULATED_MEMORY "
                     "sets how much memory it has.");
  }
  state.num_allocations++;
  int64_t peak = state.peak;
  while (peak < now && !state.peak.compare_exchange_weak(peak, now)) {
  }
}

inline void release(c10::DeviceIndex index, size_t nbytes) {
  device_states[index].allocated -= rounded(nbytes);
}

}  // namespace simulated_npu
