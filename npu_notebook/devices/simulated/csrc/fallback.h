// Every operator that has no kernel of its own runs here: its NPU tensors become CPU
// aliases, the CPU kernel runs, and its results become NPU tensors again.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "alias.h"
#include "generator.h"

namespace simulated_npu {

// Arguments that a real accelerator accepts on the CPU beside tensors of its own.
// Reviewed operator by operator: whoever is not listed raises, as it does on a device.
// Source: aten/src/ATen/native (TensorAdvancedIndexing.cpp, PackedSequence.cpp) and
// the checks of torch 2.13's CUDA kernels.
inline bool may_stay_on_cpu(const std::string& operator_name,
                            const std::string& argument) {
  static const auto* allowed =
      new std::unordered_map<std::string_view, std::string_view>{
          {"aten::index", "indices"},
          {"aten::_unsafe_index", "indices"},
          {"aten::index_put", "indices"},
          {"aten::index_put_", "indices"},
          {"aten::_unsafe_index_put", "indices"},
          {"aten::_index_put_impl_", "indices"},
          {"aten::_index_put_impl", "indices"},
          {"aten::_pack_padded_sequence", "lengths"},
  };
  const auto found = allowed->find(operator_name);
  return found != allowed->end() && found->second == argument;
}

inline bool is_foreach(const std::string& operator_name) {
  return operator_name.rfind("aten::_foreach_", 0) == 0;
}

class FallbackCall {
 public:
  FallbackCall(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : op_(op), schema_(op.schema()), stack_(*stack) {}

  void run() {
    require_cpu_kernel();
    if (tensors_differ()) {
      run_tensor_by_tensor();
      return;
    }
    arguments_to_cpu();
    {
      const at::AutoDispatchBelowADInplaceOrView guard;
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    }
    update_npu_arguments();
    results_to_npu();
  }

 private:
  // An argument of the call and the CPU tensor that stands in for it.
  struct Pair {
    at::Tensor npu;
    at::Tensor cpu;
    const void* memory;
  };
  struct NewMemory {
    c10::StorageImpl* cpu;
    c10::Storage npu;
  };

  c10::IValue& argument(size_t index) {
    return stack_[stack_.size() - schema_.arguments().size() + index];
  }

  void require_cpu_kernel() const {
    TORCH_CHECK_NOT_IMPLEMENTED(
        op_.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU),
        "The simulated NPU does not do ", op_.operator_name(),
        ": it computes with CPU kernels and torch has none for this operator. Use "
        "operators that run on the CPU, or real devices (--device ascend).");
  }

  // Returns true for a _foreach_ call over several devices; raises for any other call
  // whose tensors are not on one device.
  bool tensors_differ() {
    bool differ = false;
    for (size_t i = 0; i < schema_.arguments().size(); i++) {
      const c10::IValue& value = argument(i);
      if (value.isTensor()) {
        differ |= differs(value.toTensor(), i);
      } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorList()) {
          differ |= differs(tensor, i);
        }
      } else if (value.isOptionalTensorList()) {
        for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
          differ |= tensor.has_value() && differs(*tensor, i);
        }
      }
    }
    const bool beside_cpu = npu_.has_value() && cpu_beside_;
    if (!differ && !beside_cpu) {
      return false;
    }
    if (is_foreach(schema_.name())) {
      return true;
    }
    const c10::Device other = differ ? *other_npu_ : c10::Device(c10::kCPU);
    TORCH_CHECK(false,
                "Expected all tensors to be on the same device, but found at least two "
                "devices, ",
                *npu_, " and ", other, "! (when running ", schema_.name(), ")");
  }

  // Notes where one tensor is; returns true if it is on a second NPU.
  bool differs(const at::Tensor& tensor, size_t index) {
    if (!tensor.defined()) {
      return false;
    }
    if (on_npu(tensor)) {
      if (!npu_.has_value()) {
        npu_ = tensor.device();
      } else if (*npu_ != tensor.device()) {
        other_npu_ = tensor.device();
        return true;
      }
      return false;
    }
    if (tensor.device().is_cpu()) {
      const c10::Argument& declared = schema_.arguments()[index];
      const auto* alias = declared.alias_info();
      const bool written = alias != nullptr && alias->isWrite();
      // A zero-dimensional CPU tensor is a number to every device, unless written to.
      if ((written || tensor.dim() > 0) &&
          !may_stay_on_cpu(schema_.name(), declared.name())) {
        cpu_beside_ = true;
      }
    }
    return false;
  }

  // The kernel of a _foreach_ operator calls the plain operator for each tensor, and
  // each of those calls finds its own device.
  void run_tensor_by_tensor() {
    const at::AutoDispatchBelowADInplaceOrView guard;
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
  }

  at::Tensor to_cpu(const at::Tensor& tensor) {
    if (!tensor.defined() || !on_npu(tensor)) {
      return tensor;
    }
    for (const Pair& pair : pairs_) {
      if (pair.npu.is_same(tensor)) {
        return pair.cpu;
      }
    }
    pairs_.push_back({tensor, cpu_alias(tensor), tensor.storage().data()});
    return pairs_.back().cpu;
  }

  void arguments_to_cpu() {
    for (size_t i = 0; i < schema_.arguments().size(); i++) {
      c10::IValue& value = argument(i);
      if (value.isTensor()) {
        value = to_cpu(value.toTensor());
      } else if (value.isTensorList()) {
        std::vector<at::Tensor> tensors = value.toTensorVector();
        for (at::Tensor& tensor : tensors) {
          tensor = to_cpu(tensor);
        }
        value = std::move(tensors);
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> tensors;
        for (std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
          tensors.push_back(tensor.has_value() ? to_cpu(*tensor) : tensor);
        }
        value = std::move(tensors);
      } else {
        other_to_cpu(value, *schema_.arguments()[i].type());
      }
    }
    if (!npu_.has_value()) {
      npu_ = resolve(std::nullopt);
    }
  }

  void other_to_cpu(c10::IValue& value, const c10::Type& declared) {
    if (value.isDevice()) {
      if (value.toDevice().type() == kNpu) {
        npu_ = npu_.has_value() ? *npu_ : resolve(value.toDevice());
        value = c10::Device(c10::kCPU);
      }
    } else if (value.isStorage()) {
      if (value.toStorage().device_type() == kNpu) {
        value = alias_storage(value.toStorage(), c10::kCPU);
      }
    } else if (value.isGenerator()) {
      if (value.toGenerator().device().type() == kNpu) {
        value = next_cpu_generator(value.toGenerator());
      }
    } else if (value.isNone() && is_optional_generator(declared)) {
      npu_ = npu_.has_value() ? *npu_ : resolve(std::nullopt);
      value = next_cpu_generator(default_generator(npu_->index()));
    }
  }

  static bool is_optional_generator(const c10::Type& type) {
    return type.kind() == c10::TypeKind::OptionalType &&
           type.expectRef<c10::OptionalType>().getElementType()->kind() ==
               c10::TypeKind::GeneratorType;
  }

  // In-place and out= kernels may have resized or replaced the memory they were given.
  void update_npu_arguments() {
    for (Pair& pair : pairs_) {
      c10::TensorImpl* npu = pair.npu.unsafeGetTensorImpl();
      const c10::TensorImpl* cpu = pair.cpu.unsafeGetTensorImpl();
      const c10::Storage& memory = cpu->storage();
      if (memory.data() != pair.memory) {
        c10::StorageImpl* storage = npu->storage().unsafeGetStorageImpl();
        storage->set_data_ptr_noswap(adopt(memory, pair.npu.device().index()));
        storage->set_nbytes(memory.nbytes());
        pair.memory = memory.data();
      }
      if (npu->sizes() != cpu->sizes() || npu->strides() != cpu->strides() ||
          npu->storage_offset() != cpu->storage_offset()) {
        npu->set_sizes_and_strides(cpu->sizes(), cpu->strides(), cpu->storage_offset());
      }
    }
  }

  at::Tensor to_npu(const at::Tensor& result) {
    if (!result.defined() || !result.device().is_cpu()) {
      return result;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        result.layout() == c10::kStrided && !result.is_quantized(),
        "The simulated NPU does not do sparse or quantized tensors (made by ",
        schema_.name(),
        "). Use dense tensors, or .cpu() for this part of the program.");
    const c10::TensorImpl* impl = result.unsafeGetTensorImpl();
    for (const Pair& pair : pairs_) {
      if (pair.cpu.unsafeGetTensorImpl() == impl) {
        return pair.npu;  // the argument itself, written in place
      }
    }
    for (const Pair& pair : pairs_) {
      if (pair.cpu.storage().is_alias_of(result.storage())) {
        return tensor_over(pair.npu.storage(), c10::DispatchKey::PrivateUse1, impl);
      }
    }
    c10::StorageImpl* storage = result.storage().unsafeGetStorageImpl();
    for (const NewMemory& memory : new_memory_) {
      if (memory.cpu == storage) {
        return tensor_over(memory.npu, c10::DispatchKey::PrivateUse1, impl);
      }
    }
    c10::Storage adopted =
        new_storage(storage->nbytes(), adopt(result.storage(), npu_->index()));
    new_memory_.push_back({storage, adopted});
    return tensor_over(std::move(adopted), c10::DispatchKey::PrivateUse1, impl);
  }

  void results_to_npu() {
    const size_t count = schema_.returns().size();
    for (size_t i = stack_.size() - count; i < stack_.size(); i++) {
      c10::IValue& value = stack_[i];
      if (value.isTensor()) {
        value = to_npu(value.toTensor());
      } else if (value.isTensorList()) {
        std::vector<at::Tensor> tensors = value.toTensorVector();
        for (at::Tensor& tensor : tensors) {
          tensor = to_npu(tensor);
        }
        value = std::move(tensors);
      }
    }
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  torch::jit::Stack& stack_;
  std::optional<c10::Device> npu_;        // where the call runs
  std::optional<c10::Device> other_npu_;  // a second device among the arguments
  bool cpu_beside_ = false;               // a CPU tensor that should be on the NPU
  c10::SmallVector<Pair, 6> pairs_;
  c10::SmallVector<NewMemory, 2> new_memory_;
};

inline void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  FallbackCall(op, stack).run();
}

inline torch::CppFunction fallback_kernel() {
  return torch::CppFunction::makeFromBoxedFunction<&fallback>();
}

}  // namespace simulated_npu
