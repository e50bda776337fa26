"""Push and pull seen from the notebook: through shared memory or in chunks."""

from __future__ import annotations

import keyword
import socket
from typing import TYPE_CHECKING, Any

from npu_notebook import bulk, messages, runtime
from npu_notebook.errors import DataError, LinkError
from npu_notebook.messages import BulkLayout
from npu_notebook.session import Session, new_id
from npu_notebook.topology import format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def push(session: Session, values: Mapping[str, Any], ranks: tuple[int, ...]) -> None:
    """Assign variables on ranks: on all of them or on none.

    Parameters
    ----------
    session : Session
        The notebook's conversation.
    values : mapping of str to object
        By variable name. Everything is pickled before anything is sent.
    ranks : tuple of int
        Where to.

    Raises
    ------
    DataError
        If a variable cannot be pickled here or unpickled there, or shared memory is
        full; no rank has changed then.
    """
    for name in values:
        _check_name(name)
    packed = bulk.pack(values)
    request_id = new_id("push")
    if packed.nbytes <= bulk.INLINE_NBYTES:
        layout = BulkLayout(sizes=packed.sizes)
        _request_push(session, request_id, values, ranks, layout, packed.parts)
        return
    near, far_hosts = _near_and_far(session, ranks)
    path = bulk.region_path(
        bulk.shared_memory_dir(), session.connection.name, request_id
    )
    try:
        layout = packed.write(path)
    except DataError as error:  # it names the file; people know the variables
        raise DataError(", ".join(values), error.problem, error.remedy) from error
    try:
        for host in far_hosts:
            _send_region(session, layout, request_id, host)
        if not near:
            layout = BulkLayout(sizes=layout.sizes)
        _request_push(session, request_id, values, ranks, layout, [])
    finally:
        path.unlink(missing_ok=True)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name):
        return
    shown = name if isinstance(name, str) else repr(name)
    problem = "is not a name a variable can have"
    raise DataError(shown, problem, "Use a Python identifier that is no keyword.")


def _request_push(
    session: Session,
    request_id: str,
    values: Mapping[str, Any],
    ranks: tuple[int, ...],
    layout: BulkLayout,
    payload: Sequence[memoryview],
) -> None:
    arrivals = session.expect(request_id)
    message = messages.PushValues(
        request_id=request_id,
        transfer_id=request_id,
        names=tuple(values),
        ranks=ranks,
        layout=layout,
    )
    try:
        session.send(message, payload)
        while True:
            done, _ = session.next_of(arrivals)
            if isinstance(done, messages.RequestDone):
                break
    finally:
        session.forget(request_id)
    if done.problem:
        raise DataError(", ".join(values), done.problem, done.remedy)


def _near_and_far(
    session: Session, ranks: tuple[int, ...]
) -> tuple[list[int], list[str]]:
    """Return the ranks that share memory with us, and the hosts of the others."""
    facts = session.fact.ranks if session.fact else ()
    own_key = runtime.memory_key()
    near = [f.rank for f in facts if f.rank in ranks and f.memory_key == own_key]
    far = {f.host for f in facts if f.rank in ranks and f.memory_key != own_key}
    return near, sorted(far)


def _send_region(
    session: Session, layout: BulkLayout, transfer_id: str, host: str
) -> None:
    """Send a region to another host's agent, a few chunks ahead of its answers."""
    parts = bulk.read_region(layout)
    region = memoryview(parts[0].obj)
    total = len(region)
    arrivals = session.expect(transfer_id)
    stored = sent = 0
    try:
        while stored < total:
            while sent < min(total, stored + bulk.CREDIT * bulk.CHUNK_NBYTES):
                end = min(total, sent + bulk.CHUNK_NBYTES)
                chunk = messages.BulkChunk(
                    transfer_id=transfer_id, host=host, offset=sent, total_nbytes=total
                )
                session.send(chunk, [region[sent:end]])
                sent = end
            answer, _ = session.next_of(arrivals)
            if isinstance(answer, messages.BulkCredit):
                stored = max(stored, answer.upto)
            elif isinstance(answer, messages.RequestDone):
                raise DataError(transfer_id, answer.problem, answer.remedy)
    finally:
        session.forget(transfer_id)


def pull(
    session: Session, names: tuple[str, ...], ranks: tuple[int, ...]
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Fetch variables from ranks.

    Returns
    -------
    values : list of dict
        One per rank, in rank order.
    moved_to_cpu : tuple of str
        Names of device tensors that arrived as CPU tensors.

    Raises
    ------
    DataError
        If a rank lacks a name or cannot send it; the sentence names the ranks.
    """
    request_id = new_id("pull")
    arrivals = session.expect(request_id)
    answers: dict[int, messages.PulledValues] = {}
    values: dict[int, dict[str, Any]] = {}
    try:
        session.send(
            messages.PullValues(request_id=request_id, names=names, ranks=ranks)
        )
        while len(answers) < len(ranks):
            answer, payload = session.next_of(arrivals)
            if isinstance(answer, messages.RequestDone):
                raise DataError(", ".join(names), answer.problem, answer.remedy)
            if isinstance(answer, messages.PulledValues):
                answers[answer.rank] = answer
                if not answer.missing and not answer.problem:
                    values[answer.rank] = _unpack(session, answer, payload)
    finally:
        session.forget(request_id)
        for answer in answers.values():
            bulk.remove_region(answer.layout)
    _raise_for_lost_ranks(names, answers)
    _raise_for_problems(names, answers)
    moved = {name for answer in answers.values() for name in answer.moved_to_cpu}
    return [values[rank] for rank in ranks], tuple(sorted(moved))


def _unpack(
    session: Session, answer: messages.PulledValues, payload: list[Any]
) -> dict[str, Any]:
    layout = answer.layout
    if layout.path:
        parts: list[Any] = list(bulk.read_region(layout))
    elif payload:
        parts = [payload[0], *(bytearray(part) for part in payload[1:])]
    else:
        parts = list(_receive_region(session, answer))
    try:
        return bulk.unpack(parts)
    except Exception as error:
        name = answer.request_id
        problem = f"rank {answer.rank}'s value cannot be unpacked here ({error})"
        remedy = f"Import what it needs in this notebook on {socket.gethostname()}."
        raise DataError(name, problem, remedy) from error


def _receive_region(
    session: Session, answer: messages.PulledValues
) -> list[memoryview]:
    """Collect a region that comes in chunks, acknowledging each."""
    transfer_id = f"{answer.request_id}/{answer.rank}"
    chunks = session.expect(transfer_id)
    region = bytearray(bulk.region_nbytes(answer.layout.sizes))
    received = 0
    try:
        # The sender may start only now: the queue above exists.
        session.send(messages.BulkCredit(transfer_id=transfer_id, host="", upto=0))
        while received < len(region):
            chunk, payload = session.next_of(chunks)
            if isinstance(chunk, messages.BulkChunk):
                piece = payload[0]
                region[chunk.offset : chunk.offset + len(piece)] = piece
                received = chunk.offset + len(piece)
                session.send(
                    messages.BulkCredit(transfer_id=transfer_id, host="", upto=received)
                )
            elif isinstance(chunk, messages.RequestDone):
                raise LinkError(session.connection.name, chunk.problem, chunk.remedy)
    finally:
        session.forget(transfer_id)
    return bulk.split_region(memoryview(region), answer.layout.sizes)


def _raise_for_lost_ranks(
    names: Sequence[str], answers: dict[int, messages.PulledValues]
) -> None:
    """Raise for the ranks in whose place the controller answered."""
    # A rank's own words begin with the name of the variable, in quotes.
    told = {
        rank: one.problem
        for rank, one in sorted(answers.items())
        if one.problem and not one.problem.startswith("'")
    }
    if not told:
        return
    causes = {r: why for r, why in told.items() if not why.startswith("not run: ")}
    problem = "; ".join(dict.fromkeys((causes or told).values()))
    remedy = "See `%npu_cluster status`."
    if causes and len(causes) < len(answers):
        there = format_ranks(set(answers) - set(causes))
        restart = f"`%npu_cluster restart --ranks {format_ranks(causes)}`"
        remedy = f"Pull it from --ranks {there}, or replace what is lost: {restart}."
    raise DataError(", ".join(names), f"cannot be pulled: {problem}", remedy)


def _raise_for_problems(
    names: Sequence[str], answers: dict[int, messages.PulledValues]
) -> None:
    for name in dict.fromkeys(n for one in answers.values() for n in one.missing):
        lacking = [rank for rank, one in answers.items() if name in one.missing]
        problem = f"is not defined on rank(s) {format_ranks(lacking)}"
        having = sorted(set(answers) - set(lacking))
        remedy = (
            f"Pull it from --ranks {format_ranks(having)}."
            if having
            else "Define it in a %%spmd cell first."
        )
        raise DataError(name, problem, remedy)
    for rank in sorted(answers):
        if answers[rank].problem:
            quoted, _, problem = answers[rank].problem.partition(": ")
            name = quoted.strip("'")
            remedy = "Convert it on the rank first, for example with .cpu() or float()."
            if name not in names:  # the file that could not be written, not a variable
                name = ", ".join(names)
                remedy = "Make room there, or pull less at once."
            raise DataError(name, f"on rank {rank}: {problem}", remedy)
