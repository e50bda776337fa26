"""``torch.npu``: random numbers of each device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_notebook.devices.simulated.library import library
from npu_notebook.devices.simulated.npu.device import Device, index_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch


class _Generators:
    """The default generator of every device, by index."""

    def __getitem__(self, index: int) -> torch.Generator:
        return library().default_generator(index)

    def __len__(self) -> int:
        return library().device_count()

    def __iter__(self) -> Iterator[torch.Generator]:
        return (self[index] for index in range(len(self)))


default_generators = _Generators()


def _generator(device: Device) -> torch.Generator:
    return default_generators[index_of(device)]


def manual_seed(seed: int) -> None:
    """Seed the current device."""
    _generator(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device; `torch.manual_seed` calls it."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seed the current device with a number nobody knows."""
    _generator(None).seed()


def seed_all() -> None:
    """Seed every device with one number nobody knows."""
    manual_seed_all(_generator(None).seed())


def initial_seed() -> int:
    """Return the seed of the current device."""
    return _generator(None).initial_seed()


def get_rng_state(device: Device = "npu") -> torch.Tensor:
    """Return the state of a device: 16 bytes, its seed and its offset."""
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = "npu") -> None:
    """Set the state of a device to one `get_rng_state` gave."""
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the state of every device."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the state of every device."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
