"""What ``%load_ext npu_notebook`` adds to a shell, and takes away again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from npu_notebook.notebook import autospmd
from npu_notebook.notebook.magics import ClusterMagics
from npu_notebook.notebook.sink import open_sink
from npu_notebook.notebook.state import NotebookState

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

_loaded: WeakKeyDictionary[InteractiveShell, Extension] = WeakKeyDictionary()


class Extension:
    """The magics, the cell transformer and the hooks of one shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.state = NotebookState(shell)
        self._shell = shell
        self._magics = ClusterMagics(self.state)
        self._own_shutdown: Callable[[bool], Any] | None = None

    def add(self) -> None:
        """Add everything."""
        self._shell.register_magics(self._magics)
        self._shell.input_transformers_cleanup.append(self._transform)
        self._shell.events.register("pre_run_cell", self._before_cell)
        self._shell.events.register("post_run_cell", self._after_cell)
        self._wrap_shutdown()
        self.state.watch_exit(enabled=True)

    def remove(self) -> None:
        """Take everything away; the clusters linger."""
        self.state.watch_exit(enabled=False)
        self.state.leave(stop=False)
        kernel = getattr(self._shell, "kernel", None)
        if kernel is not None and self._own_shutdown is not None:
            del kernel.do_shutdown
        self._shell.events.unregister("pre_run_cell", self._before_cell)
        self._shell.events.unregister("post_run_cell", self._after_cell)
        self._shell.input_transformers_cleanup.remove(self._transform)
        manager = self._shell.magics_manager
        for kind, names in self._magics.magics.items():
            for name in names:
                manager.magics[kind].pop(name, None)
        manager.registry.pop(type(self._magics).__name__, None)

    def _transform(self, lines: list[str]) -> list[str]:
        enabled = self.state.auto_spmd and not self._is_silent()
        return autospmd.transform(lines, enabled=enabled)

    # IPython leaves such transformers out when it only asks whether a cell is complete.
    # Source: IPython.core.inputtransformer2.TransformerManager.check_complete.
    _transform.has_side_effects = True  # type: ignore[attr-defined]

    def _is_silent(self) -> bool:
        """Whether the front end runs code of its own, such as a variable viewer's."""
        shell: Any = self._shell
        if not hasattr(shell, "get_parent"):
            return False
        content = (shell.get_parent() or {}).get("content", {})
        return bool(content.get("silent"))

    def _before_cell(self, _info: object) -> None:
        self.state.tell_news()

    def _after_cell(self, result: ExecutionResult) -> None:
        self.state.tell_news()
        code = getattr(result.info, "raw_cell", None) or ""
        if self.state.has_clusters and "env" in code:
            for sentence in self.state.environment.news():
                open_sink(self._shell).stream("stderr", f"{sentence}\n")

    def _wrap_shutdown(self) -> None:
        """Learn whether the kernel is shut down for good or restarted.

        On the kernel object and not in a subclass: the stock kernel runs.
        Source: ipykernel 6.29.5 and 7.4.0, ``Kernel.shutdown_request``.
        """
        kernel = getattr(self._shell, "kernel", None)
        if kernel is None:
            return
        own_shutdown = kernel.do_shutdown
        self._own_shutdown = own_shutdown

        def do_shutdown(restart: bool) -> object:  # noqa: FBT001  as the kernel calls it
            self.state.leave(stop=not restart)
            return own_shutdown(restart)

        kernel.do_shutdown = do_shutdown


def load(shell: InteractiveShell) -> None:
    """Add the magics to a shell; a second call changes nothing."""
    if shell not in _loaded:
        extension = Extension(shell)
        extension.add()
        _loaded[shell] = extension


def unload(shell: InteractiveShell) -> None:
    """Take the magics away; running clusters linger."""
    extension = _loaded.pop(shell, None)
    if extension is not None:
        extension.remove()
