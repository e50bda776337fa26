// The clock of DistributedDataParallel's reducer for a simulated NPU.
#pragma once

#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <optional>

namespace simulated_npu {

// Without a timer of its own DDP warns on every rank. Everything is synchronous here, so
// the host's clock, which the base class records, is the device's.
class DdpTimer final : public c10d::Timer {
 public:
  explicit DdpTimer(c10::Device /*device*/) {}

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto start_ns = getTimestamp(start);
    const auto end_ns = getTimestamp(end);
    // An event may be left over from the step before (no_sync).
    if (!start_ns || !end_ns || *end_ns < *start_ns) {
      return std::nullopt;
    }
    return *end_ns - *start_ns;
  }
};

}  // namespace simulated_npu

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::DeviceType::PrivateUse1,
                         simulated_npu::DdpTimer)
}  // namespace c10d
