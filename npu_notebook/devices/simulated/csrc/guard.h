// Devices, streams and events as torch asks for them. Every stream is synchronous.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/version.h>

#include <array>
#include <atomic>
#include <chrono>

#include "devices.h"

// getStream and exchangeStream are noexcept up to torch 2.6.
#define SIMULATED_NPU_STREAM_NOEXCEPT \
  noexcept(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR <= 6)

namespace simulated_npu {

inline thread_local std::array<c10::StreamId, kMaxDevices> current_streams{};
inline std::atomic<c10::StreamId> next_stream_id{1};

using Clock = std::chrono::steady_clock;

struct NpuGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kNpu; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return c10::Device(kNpu, current_index); }
  void setDevice(c10::Device device) const override {
    current_index = resolve(device).index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) {
      current_index = device.index();
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(device_total);
  }

  c10::Stream getStream(c10::Device device) const
      SIMULATED_NPU_STREAM_NOEXCEPT override {
    device = resolve(device);
    return stream(device, current_streams[device.index()]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream(resolve(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return stream(resolve(device), next_stream_id++);
  }
  c10::Stream exchangeStream(c10::Stream next) const
      SIMULATED_NPU_STREAM_NOEXCEPT override {
    const c10::Stream before = getStream(next.device());
    current_streams[next.device_index()] = next.id();
    return before;
  }
  // Not marked override: torch 2.9 does not have it yet.
  void* getStreamNativeHandle(const c10::Stream value) const {
    return reinterpret_cast<void*>(value.id());
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}

  void record(void** event, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Clock::time_point();
    }
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr,
                "Both events must be recorded before calculating elapsed time.");
    const auto elapsed =
        *static_cast<Clock::time_point*>(end) - *static_cast<Clock::time_point*>(start);
    return std::chrono::duration<double, std::milli>(elapsed).count();
  }

 private:
  static c10::Stream stream(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }
};

}  // namespace simulated_npu
