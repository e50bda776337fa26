"""Devices: where a rank's tensors live (`ascend`, `simulated`, `cuda`, `cpu`).

`provider` holds the seam; one module per provider beside it. Importing any of them
imports no torch: torch is imported in `DeviceProvider.bind`, in the rank process.
"""
