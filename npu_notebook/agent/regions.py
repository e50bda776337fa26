"""Regions of packed values on their way between this host and the controller.

Chunks that come in are written to a file of the shared-memory folder, which the ranks
map; a rank's own file is read, sent and removed. The number of chunks on their way is
limited by credit, so that commands and heartbeats pass between them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from npu_notebook import bulk
from npu_notebook.errors import DataError
from npu_notebook.messages import AgentReport, BulkChunk, BulkCredit, RegionStored

Send: TypeAlias = Callable[[AgentReport, list[bytes]], None]


@dataclass(slots=True)
class _Incoming:
    """A region being received; ``fd`` None: it failed, the rest is dropped."""

    path: Path
    fd: int | None


@dataclass(slots=True)
class _Outgoing:
    """A region being sent: bytes sent so far, and bytes in all."""

    fd: int
    nbytes: int
    sent: int = 0


class Regions:
    """The regions of one cluster on this host.

    Parameters
    ----------
    cluster : str
        Name of the cluster.
    host : str
        Name of this host in the cluster.
    send : callable
        Sends a report with its payload to the controller.

    Attributes
    ----------
    problem : str
        Why there can be no regions here; "" normally.
    """

    def __init__(self, cluster: str, host: str, send: Send) -> None:
        self._cluster = cluster
        self._host = host
        self._send = send
        self._folder = bulk.shared_memory_dir()
        self._incoming: dict[str, _Incoming] = {}
        self._outgoing: dict[str, _Outgoing] = {}
        self.problem = ""
        self._marker: _Marker | None = None
        try:
            remove_stale_regions(self._folder)
            self._marker = _Marker(self._folder, cluster)
        except OSError as error:
            self.problem = (
                f"{self._folder} cannot be used ({error.strerror}): "
                "large values can be neither pushed nor pulled"
            )

    def receive(self, chunk: BulkChunk, payload: list[Any]) -> None:
        """Store a chunk; acknowledge it, and the region when it is complete."""
        region = self._incoming.get(chunk.transfer_id)
        if region is None:
            region = self._incoming[chunk.transfer_id] = self._create(chunk)
        end = chunk.offset + sum(memoryview(part).nbytes for part in payload)
        if region.fd is not None:
            try:
                _write_all(region.fd, payload, chunk.offset)
            except OSError as error:
                self._fail(region, chunk, str(error))
        self._send(
            BulkCredit(transfer_id=chunk.transfer_id, host=self._host, upto=end), []
        )
        if end >= chunk.total_nbytes:
            del self._incoming[chunk.transfer_id]
            if region.fd is not None:
                os.close(region.fd)
                self._answer(chunk.transfer_id, region.path)

    def _create(self, chunk: BulkChunk) -> _Incoming:
        path = bulk.region_path(self._folder, self._cluster, chunk.transfer_id)
        region = _Incoming(path, None)
        try:
            bulk.create_region(path, chunk.total_nbytes).close()
            region.fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (DataError, OSError) as error:
            self._fail(region, chunk, str(error))
        return region

    def _fail(self, region: _Incoming, chunk: BulkChunk, problem: str) -> None:
        if region.fd is not None:
            os.close(region.fd)
            region.fd = None
            region.path.unlink(missing_ok=True)
        self._answer(chunk.transfer_id, region.path, problem)

    def send(self, transfer_id: str, path: str) -> None:
        """Begin to send a rank's region; its name is removed at once."""
        file = Path(path)
        if file.parent != self._folder or bulk.region_cluster(file) is None:
            self._answer(transfer_id, file, f"{path} is no region of this user")
            return
        try:
            fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            file.unlink()
        except OSError as error:
            self._answer(transfer_id, file, f"host {self._host}: {error}")
            return
        self._outgoing[transfer_id] = _Outgoing(fd, os.fstat(fd).st_size)
        self.credit(transfer_id, 0)

    def credit(self, transfer_id: str, upto: int) -> None:
        """Go on sending: the receiver has stored everything below ``upto``."""
        region = self._outgoing.get(transfer_id)
        if region is None:
            return
        limit = min(upto + bulk.CREDIT * bulk.CHUNK_NBYTES, region.nbytes)
        while region.sent < limit:
            data = os.pread(region.fd, bulk.CHUNK_NBYTES, region.sent)
            chunk = BulkChunk(
                transfer_id=transfer_id,
                host="",
                offset=region.sent,
                total_nbytes=region.nbytes,
            )
            self._send(chunk, [data])
            region.sent += len(data)
        if upto >= region.nbytes:
            os.close(region.fd)
            del self._outgoing[transfer_id]

    def close(self) -> None:
        """Remove every region of this cluster from the shared-memory folder."""
        for incoming in self._incoming.values():
            if incoming.fd is not None:
                os.close(incoming.fd)
        for outgoing in self._outgoing.values():
            os.close(outgoing.fd)
        if self._marker is not None:
            self._marker.remove()
            remove_stale_regions(self._folder)

    def _answer(self, transfer_id: str, path: Path, problem: str = "") -> None:
        self._send(
            RegionStored(
                transfer_id=transfer_id,
                host=self._host,
                path=str(path),
                problem=problem,
            ),
            [],
        )


class _Marker:
    """An empty file whose lock says that a cluster lives on this host."""

    def __init__(self, folder: Path, cluster: str) -> None:
        self._path = folder / f"{_marker_prefix()}{cluster}-{os.getpid()}"
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            self._fd = os.open(self._path, flags, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            if os.fstat(self._fd).st_nlink:
                return
            os.close(self._fd)  # another agent tidied it up before it was locked

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._fd)


def _marker_prefix() -> str:
    return f"{bulk.REGION_PREFIX}agent-{os.getuid()}-"


def remove_stale_regions(folder: Path) -> None:
    """Remove this user's regions of clusters that have no living agent on this host."""
    living = _living_clusters(folder)
    for path in folder.glob(f"{bulk.own_regions()}*"):
        if bulk.region_cluster(path) not in living:
            path.unlink(missing_ok=True)


def _living_clusters(folder: Path) -> set[str]:
    living: set[str] = set()
    for marker in folder.glob(f"{_marker_prefix()}*"):
        try:
            fd = os.open(marker, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # removed meanwhile
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            name = marker.name.removeprefix(_marker_prefix())
            living.add(name.rpartition("-")[0])
        else:
            marker.unlink(missing_ok=True)
        finally:
            os.close(fd)
    return living


def _write_all(fd: int, payload: list[Any], offset: int) -> None:
    for part in payload:
        view = memoryview(part).cast("B")
        while view.nbytes:
            written = os.pwrite(fd, view, offset)
            view = view[written:]
            offset += written
