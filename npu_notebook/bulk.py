"""Pack variables into one flat region and read them back without a second copy.

A region is the pickle followed by its out-of-band buffers (pickle protocol 5), each
aligned. On one host it is a file in the shared-memory folder that the notebook writes
once and every rank maps privately: one copy for all ranks, and a rank that writes to
its array gets its own pages then, not before.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import cloudpickle

from npu_notebook.errors import DataError
from npu_notebook.messages import BulkLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ALIGNMENT = 64
"""Bytes; a cache line, and more than any dtype asks for."""
CHUNK_NBYTES = 16 << 20
"""Size of one chunk on the wire: small enough for an interrupt to pass between two."""
CREDIT = 4
"""Chunks that may be on their way unacknowledged."""
INLINE_NBYTES = 64 << 10
"""Up to this size a region travels inside its message."""
REGION_PREFIX = "npu-notebook-"

Buffer: TypeAlias = bytes | bytearray | memoryview


class Packed(NamedTuple):
    """The parts of packed variables, not yet copied anywhere."""

    parts: list[memoryview]
    moved_to_cpu: tuple[str, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each part, the pickle first."""
        return tuple(part.nbytes for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole region."""
        return region_nbytes(self.sizes)

    def write(self, path: Path) -> BulkLayout:
        """Copy the parts into a new file of the shared-memory folder.

        Raises
        ------
        DataError
            If there is not enough room; nothing is left behind.

        Notes
        -----
        Written, not mapped: each page of a mapping costs a fault and a cleared page
        before the copy, together about as much time again.
        """
        fd = _create(path)
        try:
            os.ftruncate(fd, self.nbytes)
            for part, start in zip(self.parts, part_offsets(self.sizes), strict=True):
                _write_at(fd, part, start)
        except OSError as error:
            raise _no_room(path, self.nbytes, error) from error
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        return BulkLayout(sizes=self.sizes, path=str(path))


def part_offsets(sizes: Sequence[int]) -> list[int]:
    """Return where each part starts.

    Examples
    --------
    >>> part_offsets((10, 100, 1))
    [0, 64, 192]
    """
    starts: list[int] = []
    end = 0
    for size in sizes:
        starts.append(end)
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return starts


def region_nbytes(sizes: Sequence[int]) -> int:
    """Return the size of a region in bytes; at least 1, so that it can be mapped."""
    return max(1, part_offsets(sizes)[-1] + sizes[-1]) if sizes else 1


def shared_memory_dir() -> Path:
    """Return the folder whose files are memory: /dev/shm, else the temporary folder."""
    chosen = os.environ.get("NPU_NOTEBOOK_SHARED_MEMORY_DIR")
    if chosen:
        return Path(chosen)
    linux = Path("/dev/shm")  # noqa: S108  created with mode 0600 and O_EXCL below
    return linux if linux.is_dir() else Path(tempfile.gettempdir())


def region_path(folder: Path, cluster: str, transfer_id: str) -> Path:
    """Return the name of a region; `region_cluster` reads it back."""
    return folder / f"{own_regions()}{cluster}+{transfer_id.replace('/', '_')}"


def own_regions() -> str:
    """Return what the names of all regions of this user begin with."""
    return f"{REGION_PREFIX}{os.getuid()}+"  # no cluster's name may hold a plus


def region_cluster(path: Path) -> str | None:
    """Return which cluster of this user a region belongs to, None if it is no region.

    Examples
    --------
    >>> region_cluster(region_path(Path("/dev/shm"), "a-b", "push-1"))
    'a-b'
    """
    if not path.name.startswith(own_regions()):
        return None
    cluster, plus, _ = path.name.removeprefix(own_regions()).partition("+")
    return cluster if plus else None


class Region:
    """A new file of known size, mapped for writing.

    Notes
    -----
    The blocks are reserved before the first write: a full tmpfs would otherwise kill
    the writer with SIGBUS instead of raising.
    Source: tmpfs(5), posix_fallocate(3).
    """

    def __init__(self, path: Path, nbytes: int) -> None:
        self.path = path
        fd = _create(path)
        try:
            _reserve(fd, nbytes)
            self._map = mmap.mmap(fd, nbytes)
        except OSError as error:
            raise _no_room(path, nbytes, error) from error
        finally:
            os.close(fd)

    def __enter__(self) -> mmap.mmap:
        return self._map

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()
        if kind is not None:
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmap; the file stays."""
        self._map.close()


def create_region(path: Path, nbytes: int) -> Region:
    """Create a region file of ``nbytes`` bytes (mode 0600).

    Raises
    ------
    DataError
        If the folder has not enough room.
    """
    return Region(path, nbytes)


def _create(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        problem = f"{path.parent} cannot be written ({error.strerror})"
        remedy = "Set NPU_NOTEBOOK_SHARED_MEMORY_DIR to a folder in memory that can."
        raise DataError(path.name, problem, remedy) from error


def _no_room(path: Path, nbytes: int, error: OSError) -> DataError:
    """Remove what was begun and say why it could not be finished."""
    path.unlink(missing_ok=True)
    problem = f"{nbytes:,} bytes do not fit into {path.parent} ({error.strerror})"
    remedy = f"Free some of it (`df -h {path.parent}`) or send less at once."
    return DataError(path.name, problem, remedy)


def _write_at(fd: int, part: memoryview, start: int) -> None:
    """Write all of a part, in pieces between which a Ctrl-C is heard."""
    at = 0
    while at < part.nbytes:
        at += os.pwrite(fd, part[at : at + CHUNK_NBYTES], start + at)


def _reserve(fd: int, nbytes: int) -> None:
    if sys.platform == "linux":
        os.posix_fallocate(fd, 0, nbytes)
    else:
        os.ftruncate(fd, nbytes)


def read_region(layout: BulkLayout) -> list[memoryview]:
    """Map a region privately and return its parts; writing to them copies pages."""
    nbytes = region_nbytes(layout.sizes)
    with Path(layout.path).open("rb") as file:
        region = mmap.mmap(
            file.fileno(), nbytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE
        )
    return split_region(memoryview(region), layout.sizes)


def remove_region(layout: BulkLayout) -> None:
    """Remove a region's file if it has one; what is mapped stays readable."""
    if layout.path:
        Path(layout.path).unlink(missing_ok=True)


def split_region(region: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    """Return the parts of a region."""
    starts = part_offsets(sizes)
    return [region[a : a + n] for a, n in zip(starts, sizes, strict=True)]


def pack(values: Mapping[str, Any]) -> Packed:
    """Pickle variables, their arrays and tensors as buffers beside the pickle.

    Parameters
    ----------
    values : mapping of str to object
        By variable name. Classes and functions of ``__main__`` travel by value
        (cloudpickle); device tensors travel as CPU tensors.

    Raises
    ------
    DataError
        Naming the first variable that cannot be pickled, and why.
    """
    buffers: list[pickle.PickleBuffer] = []
    moved: list[str] = []
    try:
        data, on_device = _pickle(dict(values), buffers.append)
        if on_device:
            moved = [name for name in values if _pickle({name: values[name]}, _drop)[1]]
    except (Exception, SystemExit) as error:  # __reduce__ of any user type may exit
        raise _name_the_culprit(values, error) from error
    parts = [memoryview(data), *(buffer.raw() for buffer in buffers)]
    return Packed(parts, tuple(moved))


def unpack(parts: Sequence[Buffer]) -> dict[str, Any]:
    """Return the variables; arrays lie in ``parts`` and are writable if those are.

    Raises
    ------
    Exception
        Whatever a type's own unpickling raises, such as `ImportError` for a module
        that does not exist here.
    """
    result: dict[str, Any] = pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301  from an authenticated peer
    return result


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle is untyped
    """cloudpickle, with torch tensors as raw buffers (torch itself copies them)."""

    def __init__(
        self, file: io.BytesIO, buffer_callback: Callable[[pickle.PickleBuffer], Any]
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self.on_device = False

    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401  pickle's own protocol
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor):
            reduced = self._reduce_tensor(obj, torch)
            if reduced is not None:
                return reduced
        return super().reducer_override(obj)

    def _reduce_tensor(self, tensor: Any, torch: Any) -> Any:  # noqa: ANN401  torch is not imported here
        if tensor.device.type == "meta":
            message = "a meta tensor has no data"
            raise TypeError(message)
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        if not plain or tensor.layout != torch.strided or tensor.is_quantized:
            return None  # torch's own way, copied into the pickle
        self.on_device |= tensor.device.type != "cpu"
        dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        raw = dense.reshape(-1).view(torch.uint8).numpy()
        facts = (
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            tensor.requires_grad,
            isinstance(tensor, torch.nn.Parameter),
        )
        return _rebuild_tensor, (pickle.PickleBuffer(raw), *facts)


def _rebuild_tensor(
    data: Buffer,
    dtype: str,
    shape: tuple[int, ...],
    requires_grad: bool,  # noqa: FBT001  positional in a pickle
    parameter: bool,  # noqa: FBT001  as above
) -> Any:  # noqa: ANN401  torch is not imported here
    import torch

    kind = getattr(torch, dtype)
    if memoryview(data).nbytes == 0:
        tensor = torch.empty(shape, dtype=kind)
    else:
        writable = data if not memoryview(data).readonly else bytearray(data)
        tensor = torch.frombuffer(writable, dtype=kind).reshape(shape)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def _pickle(
    values: dict[str, Any], take: Callable[[pickle.PickleBuffer], Any]
) -> tuple[bytes, bool]:
    file = io.BytesIO()
    pickler = _Pickler(file, take)
    pickler.dump(values)
    return file.getvalue(), pickler.on_device


def _drop(_buffer: pickle.PickleBuffer) -> None:
    """Take a buffer and forget it; None keeps it out of the pickle."""


def _name_the_culprit(values: Mapping[str, Any], error: BaseException) -> DataError:
    for name, value in values.items():
        try:
            _pickle({name: value}, _drop)
        except (Exception, SystemExit) as own_error:  # noqa: BLE001  as above
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            problem = f"cannot be sent: type {kind} cannot be pickled ({own_error})"
            remedy = "Make it on the ranks with a %%spmd cell instead."
            return DataError(name, problem, remedy)
    problem = f"cannot be sent together ({error})"
    return DataError(", ".join(values), problem, "Send them one at a time.")
