// A simulated accelerator, device type "npu" of torch, whose memory is host memory.
//
// One translation unit: torch's headers cost half of the compile time, so they are
// parsed once. The parts, from the bottom up: devices.h counts memory, guard.h and
// hooks.h answer torch's questions, alias.h makes CPU tensors over NPU memory,
// fallback.h runs every operator on such aliases, hccl.h every collective.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <tuple>

#include "autocast.h"
#include "ddp_timer.h"
#include "devices.h"
#include "fallback.h"
#include "generator.h"
#include "guard.h"
#include "hccl.h"
#include "hooks.h"
#include "kernels.h"
#include "memory.h"
#include "refusals.h"

#define SIMULATED_NPU_TEXT(value) #value
#define SIMULATED_NPU_QUOTED(value) SIMULATED_NPU_TEXT(value)

namespace simulated_npu {

// Read from the file before it is loaded: a library of another torch build would load
// and then misbehave.
__attribute__((used)) const char build_key[] =
    "npu-notebook-build-key=" SIMULATED_NPU_QUOTED(SIMULATED_NPU_KEY);

REGISTER_ALLOCATOR(kNpu, &npu_allocator);
C10_REGISTER_GUARD_IMPL(PrivateUse1, NpuGuard);

void start(int devices, int64_t nbytes) {
  TORCH_CHECK(devices >= 1 && devices <= kMaxDevices,
              "The number of simulated NPUs must be between 1 and ", kMaxDevices,
              ", got ", devices, ".");
  device_total = devices;
  for (DeviceState& state : device_states) {
    state.limit = nbytes;
  }
  if (!at::isPrivateUse1HooksRegistered()) {
    at::RegisterPrivateUse1HooksInterface(new NpuHooks());
  }
}

int exchange_device(int index) {
  const int before = current_index;
  if (index >= 0) {
    current_index = resolve_index(index).index();
  }
  return before;
}

std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t> memory(int index) {
  const DeviceState& state = state_of(index);
  return {state.allocated, state.peak, state.limit, state.num_allocations,
          state.num_ooms};
}

// The gloo backend inside a simulated hccl backend, or nothing for any other backend.
BackendPtr gloo_of(const BackendPtr& backend) {
  const auto* simulated = dynamic_cast<SimulatedHccl*>(backend.get());
  return simulated == nullptr ? BackendPtr() : simulated->gloo();
}

BackendPtr new_hccl(const BackendPtr& gloo, int rank, int size) {
  return c10::make_intrusive<SimulatedHccl>(gloo, rank, size);
}

}  // namespace simulated_npu

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace simulated_npu;
  using torch::wrap_pybind_function;
  // Brings the Python types of c10d's classes.
  py::module_::import("torch._C._distributed_c10d");
  m.attr("build_key") = build_key;
  m.def("start", wrap_pybind_function(start));
  m.def("device_count", [] { return device_total; });
  m.def("current_device", [] { return int{current_index}; });
  m.def("exchange_device", wrap_pybind_function(exchange_device));
  m.def("memory", wrap_pybind_function(memory));
  m.def("set_limit", wrap_pybind_function([](int index, int64_t nbytes) {
          state_of(index).limit = nbytes;
        }));
  m.def("reset_peak", wrap_pybind_function([](int index) {
          state_of(index).peak = state_of(index).allocated.load();
        }));
  m.def("default_generator", wrap_pybind_function([](int index) -> at::Generator {
          return default_generator(index);
        }));
  m.def("new_hccl", wrap_pybind_function(new_hccl));
  m.def("gloo_of", wrap_pybind_function(gloo_of));
}
