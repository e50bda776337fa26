// Random numbers of a simulated device, apart from those of the CPU.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "devices.h"

namespace simulated_npu {

// A (seed, offset) pair like a Philox generator of a real device: DTensor reads and
// sets the offset to give shards different numbers and replicas the same ones.
struct NpuGenerator final : c10::GeneratorImpl {
  static constexpr size_t kStateBytes = 16;
  // Every random operation moves the offset by one Philox block.
  static constexpr uint64_t kOffsetStep = 4;

  explicit NpuGenerator(c10::DeviceIndex index)
      : GeneratorImpl(c10::Device(kNpu, index),
                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  // Returns a CPU generator for one operation; its seed depends on seed and offset.
  at::Generator next() {
    uint64_t mixed = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      mixed = splitmix64(seed_ + 0x9E3779B97F4A7C15ULL * (offset_ / kOffsetStep + 1));
      offset_ += kOffsetStep;
    }
    return at::detail::createCPUGenerator(mixed);
  }

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom(/*is_cuda=*/true));
    return seed_;
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::empty({int64_t{kStateBytes}}, at::kByte);
    auto* bytes = state.mutable_data_ptr<uint8_t>();
    std::memcpy(bytes, &seed_, sizeof(seed_));
    std::memcpy(bytes + sizeof(seed_), &offset_, sizeof(offset_));
    return state.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == int64_t{kStateBytes} && state.dtype() == at::kByte &&
                    state.device().is_cpu() && state.is_contiguous(),
                "The RNG state of a simulated NPU is a CPU tensor of 16 bytes, as "
                "torch.npu.get_rng_state() returns it.");
    const auto* bytes = static_cast<const uint8_t*>(state.data());
    std::memcpy(&seed_, bytes, sizeof(seed_));
    std::memcpy(&offset_, bytes + sizeof(seed_), sizeof(offset_));
  }
  NpuGenerator* clone_impl() const override {
    auto* copy = new NpuGenerator(device().index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }

 private:
  // The finaliser of SplitMix64. Source: Steele, Lea, Flood, "Fast splittable
  // pseudorandom number generators", OOPSLA 2014.
  static uint64_t splitmix64(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
    return value ^ (value >> 31);
  }

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

inline at::Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<NpuGenerator>(index);
}

inline at::Generator& default_generator(int64_t index) {
  static auto* generators = [] {
    auto* all = new std::vector<at::Generator>();
    for (int i = 0; i < kMaxDevices; i++) {
      all->push_back(new_generator(static_cast<c10::DeviceIndex>(i)));
    }
    return all;
  }();
  return (*generators)[resolve_index(index).index()];
}

inline at::Generator next_cpu_generator(const at::Generator& generator) {
  return generator.get<NpuGenerator>()->next();
}

}  // namespace simulated_npu
