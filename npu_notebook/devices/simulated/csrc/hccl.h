// Backend "hccl" of torch.distributed: gloo on the memory of the simulated devices.
#pragma once

#include <ATen/ATen.h>

#include <numeric>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "hccl_work.h"

namespace simulated_npu {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

// One method per collective that torch calls; each hands aliases to gloo.
class SimulatedHccl final : public c10d::Backend {
 public:
  SimulatedHccl(BackendPtr gloo, int rank, int size)
      : Backend(rank, size), gloo_(std::move(gloo)) {}

  const BackendPtr& gloo() const { return gloo_; }

  const std::string getBackendName() const override { return "hccl"; }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override {
    return gloo_->getSequenceNumberForGroup();
  }
  // These four are not marked override: not every supported torch has them.
  bool supportsCoalescing() const { return false; }
  void setTimeout(std::chrono::milliseconds timeout) {
    set_timeout(*gloo_, timeout, 0);
  }
  void abort() { abort_backend(*gloo_, 0); }
  void shutdown() { shutdown_backend(*gloo_, 0); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    Tensors cpu = aliases(tensors);
    return follow(gloo_->broadcast(cpu, options), tensors, OpType::BROADCAST);
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    Tensors cpu = aliases(tensors);
    c10d::AllreduceOptions gloo_options = options;
    Step last = translate(gloo_options.reduceOp, cpu);
    return follow(gloo_->allreduce(cpu, gloo_options), tensors, OpType::ALLREDUCE,
                  std::move(last));
  }

  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override {
    Tensors cpu = aliases(tensors);
    c10d::AllreduceCoalescedOptions gloo_options = options;
    Step last = translate(gloo_options.reduceOp, cpu);
    return follow(gloo_->allreduce_coalesced(cpu, gloo_options), tensors,
                  OpType::ALLREDUCE_COALESCED, std::move(last));
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    Tensors cpu = aliases(tensors);
    c10d::ReduceOptions gloo_options = options;
    Step last = translate(gloo_options.reduceOp, cpu);
    if (options.rootRank != rank_) {
      last = nullptr;  // only the root holds the sum
    }
    return follow(gloo_->reduce(cpu, gloo_options), tensors, OpType::REDUCE,
                  std::move(last));
  }

  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    TensorLists cpu_outputs = aliases(outputs);
    Tensors cpu_inputs = aliases(inputs);
    return follow(gloo_->allgather(cpu_outputs, cpu_inputs, options), joined(outputs),
                  OpType::ALLGATHER);
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    at::Tensor cpu_output = flat_alias(output);
    at::Tensor cpu_input = flat_alias(input);
    return follow(gloo_->_allgather_base(cpu_output, cpu_input, options), {output},
                  OpType::_ALLGATHER_BASE);
  }

  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override {
    TensorLists cpu_outputs = aliases(outputs);
    Tensors cpu_inputs = aliases(inputs);
    return follow(gloo_->allgather_coalesced(cpu_outputs, cpu_inputs, options),
                  joined(outputs), OpType::ALLGATHER_COALESCED);
  }

  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::AllgatherOptions& options) override {
    Tensors cpu_outputs = flat_aliases(outputs);
    Tensors cpu_inputs = flat_aliases(inputs);
    return follow(
        gloo_->allgather_into_tensor_coalesced(cpu_outputs, cpu_inputs, options),
        outputs, OpType::ALLGATHER_COALESCED);
  }

  WorkPtr gather(TensorLists& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    TensorLists cpu_outputs = aliases(outputs);
    Tensors cpu_inputs = aliases(inputs);
    return follow(gloo_->gather(cpu_outputs, cpu_inputs, options), joined(outputs),
                  OpType::GATHER);
  }

  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const c10d::ScatterOptions& options) override {
    Tensors cpu_outputs = aliases(outputs);
    TensorLists cpu_inputs = aliases(inputs);
    return follow(gloo_->scatter(cpu_outputs, cpu_inputs, options), outputs,
                  OpType::SCATTER);
  }

  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    const at::AutoDispatchBelowADInplaceOrView guard;
    Tensors whole;
    for (const Tensors& parts : inputs) {
      Tensors flat;
      for (const at::Tensor& part : parts) {
        flat.push_back(as_cpu(part).reshape({-1}));
      }
      whole.push_back(at::cat(flat));
    }
    return reduce_then_slice(aliases(outputs), std::move(whole), outputs, options);
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return reduce_then_slice({flat_alias(output)}, {flat_alias(input).clone()},
                             {output}, options);
  }

  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::ReduceScatterOptions& options) override {
    const at::AutoDispatchBelowADInplaceOrView guard;
    Tensors copies;
    for (const at::Tensor& input : inputs) {
      copies.push_back(flat_alias(input).clone());
    }
    return reduce_then_slice(flat_aliases(outputs), std::move(copies), outputs,
                             options);
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override {
    at::Tensor cpu_output = as_cpu(output);
    at::Tensor cpu_input = as_cpu(input);
    return follow(gloo_->alltoall_base(cpu_output, cpu_input, output_splits,
                                       input_splits, options),
                  {output}, OpType::ALLTOALL_BASE);
  }

  // gloo has no list form: pack the lists, exchange, unpack.
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override {
    const at::AutoDispatchBelowADInplaceOrView guard;
    Tensors cpu_outputs = aliases(outputs);
    Tensors flat_inputs;
    std::vector<int64_t> input_splits;
    for (const at::Tensor& input : aliases(inputs)) {
      input_splits.push_back(input.numel());
      flat_inputs.push_back(input.reshape({-1}));
    }
    std::vector<int64_t> output_splits;
    for (const at::Tensor& output : cpu_outputs) {
      output_splits.push_back(output.numel());
    }
    at::Tensor packed_input = at::cat(flat_inputs);
    at::Tensor packed_output = at::empty(
        {std::accumulate(output_splits.begin(), output_splits.end(), int64_t{0})},
        packed_input.options());
    Step unpack = [cpu_outputs, packed_output, output_splits] {
      const at::AutoDispatchBelowADInplaceOrView inner_guard;
      int64_t start = 0;
      for (size_t i = 0; i < cpu_outputs.size(); i++) {
        const at::Tensor part = packed_output.narrow(0, start, output_splits[i]);
        cpu_outputs[i].copy_(part.view(cpu_outputs[i].sizes()));
        start += output_splits[i];
      }
    };
    return follow(gloo_->alltoall_base(packed_output, packed_input, output_splits,
                                       input_splits, options),
                  outputs, OpType::ALLTOALL, std::move(unpack));
  }

  WorkPtr send(Tensors& tensors, int destination, int tag) override {
    Tensors cpu = aliases(tensors);
    return gloo_->send(cpu, destination, tag);
  }
  WorkPtr recv(Tensors& tensors, int source, int tag) override {
    Tensors cpu = aliases(tensors);
    return gloo_->recv(cpu, source, tag);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    Tensors cpu = aliases(tensors);
    return gloo_->recvAnysource(cpu, tag);
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    c10d::BarrierOptions gloo_options = options;
    gloo_options.device = std::nullopt;
    gloo_options.device_ids.clear();
    return gloo_->barrier(gloo_options);
  }

 private:
  WorkPtr follow(WorkPtr gloo, Tensors results, OpType op, Step last = nullptr) const {
    return SimulatedHcclWork::start(std::move(gloo), std::move(results),
                                    std::move(last), rank_, op);
  }

  // Turns a reduction of HCCL into one gloo has; returns what remains to be done. May
  // replace `tensors` by views of another type.
  Step translate(c10d::ReduceOp& op, Tensors& tensors) const {
    switch (op.op_) {
      case c10d::ReduceOp::AVG: {
        op = c10d::ReduceOp::SUM;
        return [tensors, size = size_] {
          const at::AutoDispatchBelowADInplaceOrView guard;
          for (const at::Tensor& tensor : tensors) {
            tensor.div_(size);  // raises for integers, as torch_npu's emulation does
          }
        };
      }
      case c10d::ReduceOp::SUM:
      case c10d::ReduceOp::MAX:
      case c10d::ReduceOp::MIN:
      case c10d::ReduceOp::PRODUCT:
        reduce_bools_as_bytes(op, tensors);
        return nullptr;
      case c10d::ReduceOp::PREMUL_SUM:
        TORCH_CHECK_NOT_IMPLEMENTED(
            false,
            "The simulated NPU does not do ReduceOp.PREMUL_SUM. Multiply the "
            "tensor by the factor, then reduce with ReduceOp.SUM.");
      default:
        TORCH_CHECK(false,
                    "HCCL has no reduction over bits (BAND, BOR, BXOR); the "
                    "simulated NPU has none either. Use SUM, AVG, MIN, MAX or "
                    "PRODUCT.");
    }
  }

  // HCCL reduces bool as numbers, so that SUM is "or" and PRODUCT is "and"; gloo has no
  // bool at all.
  static void reduce_bools_as_bytes(c10d::ReduceOp& op, Tensors& tensors) {
    for (at::Tensor& tensor : tensors) {
      if (tensor.scalar_type() != at::kBool) {
        return;
      }
    }
    const at::AutoDispatchBelowADInplaceOrView guard;
    for (at::Tensor& tensor : tensors) {
      tensor = tensor.view(at::kByte);
    }
    const bool any = op.op_ == c10d::ReduceOp::SUM || op.op_ == c10d::ReduceOp::MAX;
    op = any ? c10d::ReduceOp::MAX : c10d::ReduceOp::MIN;
  }

  // gloo writes the output of its own reduce_scatter in Work::wait(), after the future
  // is complete; an all-reduce of a copy keeps the future honest.
  WorkPtr reduce_then_slice(Tensors outputs, Tensors copies, Tensors results,
                            const c10d::ReduceScatterOptions& options) const {
    const at::AutoDispatchBelowADInplaceOrView guard;
    c10d::ReduceOp op = options.reduceOp;
    Tensors reduced = copies;  // views of the copies, of a type gloo can reduce
    Step divide = translate(op, reduced);
    Step slice = [outputs = std::move(outputs), copies, divide = std::move(divide),
                  size = size_, rank = rank_] {
      const at::AutoDispatchBelowADInplaceOrView inner_guard;
      if (divide) {
        divide();
      }
      for (size_t i = 0; i < outputs.size(); i++) {
        const at::Tensor part = copies[i].view({size, -1})[rank];
        outputs[i].copy_(part.view(outputs[i].sizes()));
      }
    };
    WorkPtr gloo;
    if (reduced.size() == 1) {
      c10d::AllreduceOptions gloo_options;
      gloo_options.reduceOp = op;
      gloo_options.timeout = options.timeout;
      gloo = gloo_->allreduce(reduced, gloo_options);
    } else {
      c10d::AllreduceCoalescedOptions gloo_options;
      gloo_options.reduceOp = op;
      gloo_options.timeout = options.timeout;
      gloo = gloo_->allreduce_coalesced(reduced, gloo_options);
    }
    return follow(std::move(gloo), std::move(results), OpType::REDUCE_SCATTER,
                  std::move(slice));
  }

  // Calls the member where this torch's Backend has it, does nothing where not: the
  // literal 0 prefers the overload with an int, if that one exists.
  template <class B>
  static auto set_timeout(B& backend, std::chrono::milliseconds timeout, int)
      -> decltype(backend.setTimeout(timeout)) {
    backend.setTimeout(timeout);
  }
  template <class B>
  static void set_timeout(B&, std::chrono::milliseconds, long) {}
  template <class B>
  static auto abort_backend(B& backend, int) -> decltype(backend.abort()) {
    backend.abort();
  }
  template <class B>
  static void abort_backend(B&, long) {}
  template <class B>
  static auto shutdown_backend(B& backend, int) -> decltype(backend.shutdown()) {
    backend.shutdown();
  }
  template <class B>
  static void shutdown_backend(B&, long) {}

  BackendPtr gloo_;
};

}  // namespace simulated_npu
