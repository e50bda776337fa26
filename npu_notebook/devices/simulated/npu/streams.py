"""``torch.npu``: streams and events. Every stream is synchronous."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

import torch

from npu_notebook.devices.simulated.npu.device import Device, index_of
from npu_notebook.devices.simulated.npu.device import device as device_scope

if TYPE_CHECKING:
    from types import TracebackType


class Stream(torch.Stream):
    """A stream of a simulated NPU; what it is given is done when the call returns."""

    def __new__(cls, device: Device = None, priority: int = 0, **ids: int) -> Self:
        """Make a new stream, or name an existing one by its three ids."""
        if ids:
            return super().__new__(cls, **ids)
        npu = torch.device("npu", index_of(device))
        return super().__new__(cls, device=npu, priority=priority)

    @property
    def npu_stream(self) -> int:
        """Return the number of the stream."""
        return self.stream_id


class Event(torch.Event):
    """An event of a simulated NPU; it measures time on the host's clock."""

    _recorded_s: float | None = None

    def __new__(
        cls,
        enable_timing: bool = False,  # noqa: FBT001, FBT002  as in torch_npu
        blocking: bool = False,  # noqa: FBT001, FBT002
        interprocess: bool = False,  # noqa: FBT001, FBT002, ARG004
    ) -> Self:
        """Make an event; every event can measure time."""
        return super().__new__(
            cls, device="npu", enable_timing=enable_timing, blocking=blocking
        )

    def record(self, stream: torch.Stream | None = None) -> None:
        """Note the time of now."""
        super().record(current_stream() if stream is None else stream)
        self._recorded_s = time.perf_counter()

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Let a stream wait for the event, which has happened already."""
        super().wait(current_stream() if stream is None else stream)

    def elapsed_time(self, end_event: Event) -> float:  # type: ignore[override]
        """Return the milliseconds from this event to another one.

        Raises
        ------
        RuntimeError
            If one of them was not recorded.

        Notes
        -----
        torch 2.13's own method accepts no subclass of `torch.Event`.
        """
        if self._recorded_s is None or end_event._recorded_s is None:
            problem = "Both events must be recorded before calculating elapsed time."
            raise RuntimeError(problem)
        return (end_event._recorded_s - self._recorded_s) * 1e3


def current_stream(device: Device = None) -> Stream:
    """Return the current stream of a device."""
    with device_scope(index_of(device)):
        return _named(torch.accelerator.current_stream())


def _named(stream: torch.Stream) -> Stream:
    return Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


def default_stream(device: Device = None) -> Stream:
    """Return the default stream of a device."""
    return Stream(
        stream_id=0,
        device_index=index_of(device),
        device_type=current_stream().device_type,
    )


def set_stream(stream: torch.Stream | None) -> None:
    """Make a stream the current one of its device."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


class StreamContext:
    """Context manager: a stream is the current one inside. None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._before: Stream | None = None

    def __enter__(self) -> Any:  # noqa: ANN401  None, as in torch_npu
        if self.stream is not None:
            self._before = current_stream(self.stream.device)
            set_stream(self.stream)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        set_stream(self._before)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Return a context manager in which a stream is the current one."""
    return StreamContext(stream)
