// CPU aliases of the tensors of a collective, and the work that completes with them.
#pragma once

#include <ATen/ATen.h>

#include <exception>
#include <functional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "alias.h"

namespace simulated_npu {

using c10d::OpType;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
using Step = std::function<void()>;

inline Tensors aliases(const Tensors& tensors) {
  Tensors result;
  result.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    result.push_back(as_cpu(tensor));
  }
  return result;
}

inline TensorLists aliases(const TensorLists& lists) {
  TensorLists result;
  result.reserve(lists.size());
  for (const Tensors& tensors : lists) {
    result.push_back(aliases(tensors));
  }
  return result;
}

// HCCL counts elements; gloo splits along dimension 0 and compares shapes.
inline at::Tensor flat_alias(const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return as_cpu(tensor).view({-1});
}

inline Tensors flat_aliases(const Tensors& tensors) {
  Tensors result;
  result.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    result.push_back(flat_alias(tensor));
  }
  return result;
}

inline Tensors joined(const TensorLists& lists) {
  Tensors result;
  for (const Tensors& tensors : lists) {
    result.insert(result.end(), tensors.begin(), tensors.end());
  }
  return result;
}

// gloo's work with a last step of our own and a future that holds the NPU tensors:
// DDP, FSDP2 and functional collectives read the results from the future.
class SimulatedHcclWork final : public c10d::Work {
 public:
  SimulatedHcclWork(WorkPtr gloo, Tensors results, int rank, OpType op)
      : Work(rank, op), gloo_(std::move(gloo)), results_(std::move(results)) {}

  // A factory, because an intrusive_ptr to `this` cannot be made in a constructor.
  static WorkPtr start(WorkPtr gloo, Tensors results, Step last, int rank, OpType op) {
    auto work =
        c10::make_intrusive<SimulatedHcclWork>(gloo, std::move(results), rank, op);
    Step finish = [future = work->future_, value = c10::IValue(work->results_),
                   last = std::move(last)] {
      try {
        if (last) {
          last();
        }
      } catch (...) {
        future->setError(std::current_exception());
        return;
      }
      future->markCompleted(value);
    };
    FuturePtr inner;
    try {
      inner = gloo->getFuture();
    } catch (const c10::Error&) {
      inner = nullptr;  // this kind of gloo work has no future
    }
    if (inner == nullptr) {
      gloo->wait();
      finish();
      return work;
    }
    inner->addCallback([finish, future = work->future_](c10::ivalue::Future& done) {
      if (done.hasError()) {
        future->setError(done.exception_ptr());
      } else {
        finish();
      }
    });
    return work;
  }

  bool isCompleted() override { return future_->completed(); }
  bool isSuccess() const override {
    return future_->completed() && !future_->hasError();
  }
  std::exception_ptr exception() const override {
    return future_->hasError() ? future_->exception_ptr() : gloo_->exception();
  }
  bool wait(std::chrono::milliseconds timeout = ::kNoTimeout) override {
    gloo_->wait(timeout);
    future_->waitAndThrow();
    return true;
  }
  void synchronize() override { wait(); }
  // Not marked override: torch 2.7 does not have it yet.
  void blockCurrentStream() { wait(); }
  int sourceRank() const override { return gloo_->sourceRank(); }
  std::vector<at::Tensor> result() override { return results_; }
  FuturePtr getFuture() override { return future_; }

 private:
  WorkPtr gloo_;
  Tensors results_;
  FuturePtr future_ = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()));
};

}  // namespace simulated_npu
