"""Variables that arrive from the notebook and leave for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_notebook import bulk
from npu_notebook.errors import DataError
from npu_notebook.messages import BulkLayout, PulledValues

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npu_notebook.messages import CommitValues, SendValues, StageValues

_RESULT_PREFIX = "_npu_value_"
_MAX_KEPT = 8


class Values:
    """The user's variables as the notebook pushes and pulls them.

    Parameters
    ----------
    rank : int
        Sender of the answers.
    namespace : dict
        Where cells run.
    """

    def __init__(self, rank: int, namespace: dict[str, Any]) -> None:
        self._rank = rank
        self._namespace = namespace
        self._staged: dict[str, dict[str, Any]] = {}
        self._kept: dict[str, Any] = {}

    def stage(self, command: StageValues, payload: Sequence[Any]) -> None:
        """Unpack variables and hold them back.

        Raises
        ------
        Exception
            Whatever a type's own unpickling raises.
        """
        if command.layout.path:
            parts: Sequence[Any] = bulk.read_region(command.layout)
        else:
            # Copies: what is pushed can be written to, and a frame cannot.
            parts = [payload[0], *(bytearray(part) for part in payload[1:])]
        self._staged[command.request_id] = bulk.unpack(parts)

    def commit(self, command: CommitValues) -> list[object]:
        """Assign what was staged, or drop it.

        Returns
        -------
        list of object
            What has lost its name. To free large arrays takes a while: the caller
            answers first.
        """
        staged = self._staged.pop(command.request_id, {})
        if not command.keep:
            return [staged]
        replaced = [self._namespace.get(name) for name in staged]
        self._namespace.update(staged)
        return replaced

    def keep_result(self, cell_id: str, value: object) -> None:
        """Hold the value of a cell until it is pulled, or eight newer ones are held."""
        self._kept[_RESULT_PREFIX + cell_id] = value
        while len(self._kept) > _MAX_KEPT:
            del self._kept[next(iter(self._kept))]

    def send(self, command: SendValues) -> tuple[PulledValues, list[memoryview]]:
        """Pack variables; the answer says what is missing or cannot travel."""
        missing = tuple(
            name
            for name in command.names
            if name not in self._kept and name not in self._namespace
        )
        if missing:
            return self._answer(command, missing=missing), []
        values = {name: self._take(name) for name in command.names}
        try:
            return self._pack(command, values)
        except DataError as error:
            return self._answer(command, problem=f"'{error.name}': {error.problem}"), []

    def interrupted(self, command: SendValues) -> tuple[PulledValues, list[memoryview]]:
        """Return the answer of a rank that was stopped while it packed."""
        names = ", ".join(command.names)
        return self._answer(command, problem=f"'{names}': interrupted"), []

    def _take(self, name: str) -> object:
        if name in self._kept:
            return self._kept.pop(name)
        return self._namespace[name]

    def _pack(
        self, command: SendValues, values: Mapping[str, Any]
    ) -> tuple[PulledValues, list[memoryview]]:
        packed = bulk.pack(values)
        if packed.nbytes <= bulk.INLINE_NBYTES:
            layout, payload = BulkLayout(sizes=packed.sizes), packed.parts
        else:
            folder = Path(command.shared_memory_dir or bulk.shared_memory_dir())
            cluster = os.environ.get("NPU_NOTEBOOK_CLUSTER", "")
            transfer_id = f"{command.request_id}-{self._rank}"
            path = bulk.region_path(folder, cluster, transfer_id)
            layout, payload = packed.write(path), []
        return (
            self._answer(command, layout=layout, moved_to_cpu=packed.moved_to_cpu),
            payload,
        )

    def _answer(
        self,
        command: SendValues,
        *,
        layout: BulkLayout | None = None,
        missing: tuple[str, ...] = (),
        problem: str = "",
        moved_to_cpu: tuple[str, ...] = (),
    ) -> PulledValues:
        return PulledValues(
            request_id=command.request_id,
            rank=self._rank,
            layout=layout or BulkLayout(sizes=()),
            missing=missing,
            problem=problem,
            moved_to_cpu=moved_to_cpu,
        )
