"""Submodules of the stub ``torch_npu.contrib``; see `torch_npu_stub`."""
