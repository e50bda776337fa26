"""The cluster as a person holds it: start or attach, run cells, move data, stop."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from npu_notebook import asking, exchange, messages, runtime, starting
from npu_notebook.cells import TICK_S, CellHandle, CellResult, Show, stop_button
from npu_notebook.errors import ConfigError, LinkError, NpuNotebookError
from npu_notebook.printing import Printer
from npu_notebook.session import Session, new_id, poll
from npu_notebook.topology import format_ranks, parse_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from npu_notebook.messages import ClusterFact, Update

    Ranks = str | int | Iterable[int] | None

_STOP_TIMEOUT_S = 30.0


class Cluster:
    """Ranks on one or many hosts that run the same code together.

    Make one with `Cluster.start` or `Cluster.attach`; as a context manager it is
    stopped at the end.

    Examples
    --------
    ::

        with Cluster.start(num_ranks=4) as cluster:
            cluster.run("print(rank, world_size)")
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    @classmethod
    def start(
        cls,
        num_ranks: int | None = None,
        *,
        name: str | None = None,
        owner: str = "",
        suggested_name: str = starting.DEFAULT_NAME,
        on_update: Callable[[Update | None], None] | None = None,
        **words: Any,  # noqa: ANN401  checked by `asking.make_spec`
    ) -> Self:
        """Start a cluster and wait until its ranks have formed their group.

        Parameters
        ----------
        num_ranks : int, optional
            Number of ranks; by default one per NPU of this host, or 4 simulated ones.
        name, suggested_name : str, optional
            Name of the cluster; by default the suggested one, made unique.
        owner : str, optional
            The notebook; an earlier cluster of the same owner is replaced.
        on_update : callable, optional
            Gets `StateChanged` and `Notice` while it starts, None every 50 ms.
        **words
            Those of `asking.make_spec`: ``device``, ``env``, ``linger``, ...

        Raises
        ------
        ConfigError
            If a word cannot be used; nothing has started then.
        LaunchError
            If a process does not start; everything that had started is ended.
        """
        tell = on_update or _ignore
        asking.check_words(words)
        with runtime.one_start_at_a_time():
            connection = _start_controller(
                name, suggested_name, tell, num_ranks=num_ranks, owner=owner, **words
            )
        session = Session(connection, title=owner)
        try:
            session.open()
            starting.await_ready(session, tell, TICK_S)
        except KeyboardInterrupt:
            cls(session).stop("interrupted while starting")
            raise
        except NpuNotebookError:
            with suppress(LinkError):  # the first error is the one to tell
                starting.end_controller(connection, _STOP_TIMEOUT_S)
            session.close()
            raise
        return cls(session)

    @classmethod
    def attach(cls, name: str | None = None, *, title: str = "") -> Self:
        """Join a running cluster with all its ranks and variables.

        Parameters
        ----------
        name : str, optional
            Its name; may be left out when only one runs.
        title : str, optional
            What this notebook is called.

        Raises
        ------
        LinkError
            If there is no such cluster, or it cannot be joined.
        ConfigError
            If several run and none is named.
        """
        if name is None:
            alive = [
                one.connection.name for one in runtime.list_clusters() if one.alive
            ]
            if len(alive) > 1:
                problem = f"{len(alive)} clusters run: {', '.join(alive)}"
                raise ConfigError(problem, "Name one: `%npu_cluster attach NAME`.")
            name = alive[0] if alive else starting.DEFAULT_NAME
        session = Session(runtime.read_connection(name), title=title)
        session.open()
        return cls(session)

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self._session.connection.name

    @property
    def fact(self) -> ClusterFact:
        """What is known of the cluster and its ranks right now, without asking."""
        if self._session.fact is None:
            raise self._session.ended or LinkError(self.name, "not joined", "Attach.")
        return self._session.fact

    @property
    def session(self) -> Session:
        """The conversation with the controller, for views."""
        return self._session

    def run(
        self,
        code: str,
        *,
        ranks: Ranks = None,
        timeout_s: float | None = None,
        show: Show | None = None,
        **options: Any,  # noqa: ANN401  as in `submit`
    ) -> CellResult:
        """Run a cell on ranks and wait for its end.

        Parameters
        ----------
        code : str
            The cell, as IPython understands it.
        ranks : str, int, iterable of int, optional
            Which ranks, like ``"0,2-3"``; by default all.
        timeout_s : float, optional
            Seconds after which the cell is interrupted.
        show : callable, optional
            Gets the cell's updates, and None every 50 ms; by default they are printed.
        **options
            See `submit`.

        Raises
        ------
        CellError
            If the cell failed on a rank; one traceback per distinct error.

        Notes
        -----
        Ctrl-C (the Stop button) stops the cell on all ranks; a second one insists, a
        third one ends the ranks that still run it.
        """
        handle = self.submit(code, ranks=ranks, timeout_s=timeout_s, **options)
        tell = show or Printer(handle.ranks)
        with stop_button(handle):
            for update in handle.updates(TICK_S):
                tell(update)
        try:
            return handle.outcome()
        finally:
            handle.forget()  # what comes later goes to `Session.on_late`
            for late in handle.late_updates():
                tell(late)

    def submit(
        self,
        code: str,
        *,
        ranks: Ranks = None,
        timeout_s: float | None = None,
        execution_count: int | None = None,
        want_value: bool = False,
    ) -> CellHandle:
        """Run a cell and return at once.

        Parameters
        ----------
        code, ranks, timeout_s
            As in `run`.
        execution_count : int, optional
            The notebook's ``In[n]``, named in tracebacks.
        want_value : bool
            Keep the last expression's value for `CellResult.values`.
        """
        if timeout_s is not None and not timeout_s > 0:  # nan is not either
            problem = f"a timeout of {timeout_s:g} s would end the cell at once"
            raise ConfigError(problem, "Give seconds above 0.")
        cell = messages.SubmitCell(
            cell_id=new_id("cell"),
            code=code,
            ranks=parse_ranks(ranks, self.world_size),
            timeout_s=timeout_s,
            execution_count=execution_count,
            want_value=want_value,
        )
        return CellHandle(self._session, cell, self._pull_values)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.fact.world_size

    def push(self, values: Mapping[str, Any], *, ranks: Ranks = None) -> None:
        """Assign variables on ranks, on all of them or none; see `exchange.push`."""
        exchange.push(self._session, values, parse_ranks(ranks, self.world_size))

    def pull(self, name: str, *, ranks: Ranks = None) -> list[Any]:
        """Fetch a variable: a list by rank; device tensors arrive on the CPU.

        Raises
        ------
        DataError
            If a rank lacks it or cannot send it.
        """
        return self._pull_values(name, parse_ranks(ranks, self.world_size))

    def __setitem__(self, name: str, value: object) -> None:
        self.push({name: value})

    def __getitem__(self, name: str) -> list[Any]:
        return self.pull(name)

    def interrupt(self, level: int = 1) -> None:
        """Stop whatever runs; may be called from any thread. Levels as in `run`."""
        self._session.send(messages.InterruptCell(level=level))

    def restart(self, ranks: Ranks = None, *, show: Show | None = None) -> None:
        """Replace ranks by new processes and form the groups again.

        The variables of the replaced ranks are lost, those of the others are kept.

        Raises
        ------
        LaunchError
            If a new process does not start.
        """
        chosen = parse_ranks(ranks, self.world_size)
        answer = self._ask(
            lambda key: messages.RestartRanks(request_id=key, ranks=chosen), show
        )
        if isinstance(answer, messages.RequestDone) and answer.problem:
            what = f"rank(s) {format_ranks(chosen)}"
            failure = messages.StartFailed(
                what=what, reason=answer.problem, remedy=answer.remedy
            )
            raise starting.as_error(failure)

    def status(self) -> ClusterFact:
        """Ask the controller what it knows now."""
        answer = self._ask(lambda key: messages.AskState(request_id=key), None)
        if isinstance(answer, messages.StateAnswer):
            return answer.fact
        return self.fact

    def stop(self, reason: str = "stopped by the user") -> None:
        """End every process of the cluster; harmless when it has ended already.

        Raises
        ------
        LinkError
            If its controller was asked to end and does not.
        """
        asked = self._session.ended is None
        if asked:
            self._session.send(messages.StopCluster(reason=reason))
            _await_end(self._session)
        starting.reap_controller(self._session.connection, _STOP_TIMEOUT_S)
        self._session.close()
        if asked:
            starting.check_ended(self._session.connection)

    def detach(self, reason: str = "detached") -> None:
        """Leave the cluster running for its linger time."""
        if self._session.ended is None:
            self._session.close(messages.LeaveNotebook(reason=reason))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        if self._session.ended is not None:
            return f"<Cluster {self.name}: ended>"
        fact = self.fact
        kind = fact.label or "no device"
        return f"<Cluster {self.name}: {fact.world_size} ranks, {kind}, {fact.state}>"

    def _pull_values(self, name: str, ranks: tuple[int, ...]) -> list[Any]:
        values, moved = exchange.pull(self._session, (name,), ranks)
        if moved and self._session.on_notice is not None:
            text = f"'{name}' was on a device; it arrives as CPU tensors."
            self._session.on_notice(messages.Notice(text=text))
        return [value[name] for value in values]

    def _ask(
        self, make: Callable[[str], messages.Message], show: Show | None
    ) -> Update:
        key = new_id("request")
        arrivals = self._session.expect(key)
        try:
            self._session.send(make(key))
            while True:
                arrived = poll(arrivals, TICK_S)
                if arrived is not None:
                    return arrived.update
                if show is not None:
                    show(messages.StateChanged(fact=self.fact))
        finally:
            self._session.forget(key)


def _ignore(_update: Update | None) -> None:
    """Take progress and show nothing."""


def _start_controller(
    name: str | None,
    suggested_name: str,
    tell: Callable[[Update | None], None],
    *,
    owner: str,
    **words: Any,  # noqa: ANN401  as in `Cluster.start`
) -> runtime.Connection:
    """Settle the name and start its controller, in place of an earlier one's."""
    runtime.remove_stale()
    settled, earlier = starting.settle_name(name, suggested_name, owner)
    spec = asking.make_spec(name=settled, owner=owner, **words)
    if earlier is not None:
        tell(messages.Notice(text=_replaces(earlier.name)))
        _stop_connection(earlier)
    ignored = asking.ignored_variables()
    if ignored:
        tell(messages.Notice(text=ignored))
    return starting.start_controller(spec)


def _replaces(name: str) -> str:
    return (
        f"Replacing this notebook's earlier cluster '{name}' "
        "(`%npu_cluster attach` would have kept it)."
    )


def _stop_connection(connection: runtime.Connection) -> None:
    session = Session(connection)
    session.open()
    Cluster(session).stop("replaced by a new start")


def _await_end(session: Session) -> None:
    while session.ended is None:
        try:
            session.next_of(session.events, _STOP_TIMEOUT_S)
        except LinkError:
            return
