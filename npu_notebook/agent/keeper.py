"""Keep one template warm, replace it when it died or does not fit, make others wait."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from npu_notebook.agent.template_process import TemplateProcess

if TYPE_CHECKING:
    from npu_notebook.agent.loop import Loop

log = logging.getLogger(__name__)

WITHOUT_DEVICE = ("", "none")
"""Providers of ranks that need neither a device nor torch."""

UseTemplate: TypeAlias = Callable[[TemplateProcess], None]


class TemplateKeeper:
    """The one template of an agent.

    Parameters
    ----------
    loop : Loop
        The agent's.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._template: TemplateProcess | None = None
        self._waiting: list[tuple[str, UseTemplate]] = []

    @property
    def pid(self) -> int | None:
        """The template's process, None if there is none."""
        template = self._template
        return template.pid if template is not None and template.alive else None

    @property
    def warm(self) -> TemplateProcess | None:
        """The template if it can fork at once, else None."""
        template = self._template
        return template if template is not None and template.ready else None

    def want(
        self, env: Mapping[str, str], provider: str, then: UseTemplate, *, bind: bool
    ) -> None:
        """Call ``then`` with a template for ranks of this environment.

        At once if there is one, else when its imports are done or have failed: look at
        its `TemplateProcess.problem` and `TemplateProcess.unsafe` first.

        Parameters
        ----------
        env : mapping of str to str
            The whole environment of the ranks.
        provider : str
            What they compute on; "" or ``"none"`` for ranks without torch.
        then : callable
            What to do with the template.
        bind : bool
            Whether the provider's device must be bound in it.
        """
        with_torch = provider not in WITHOUT_DEVICE
        template = self._template
        if template is None or not template.serves(
            env, provider, with_torch=with_torch
        ):
            self._replace(TemplateProcess(env, with_torch=with_torch))
        self._waiting.append((provider if bind and with_torch else "", then))
        self._go_on()

    def _replace(self, template: TemplateProcess) -> None:
        self._drop()  # who waits goes on to wait, for the new one
        self._template = template
        self._loop.watch(template, self._on_answer)
        log.info("template: pid %d, torch: %s", template.pid, template.with_torch)

    def _on_answer(self) -> None:
        template = self._template
        assert template is not None
        self._loop.forget(template)
        template.read_answer()
        words = [template.bound, template.problem, template.unsafe]
        said = " ".join(word for word in words if word)
        log.info("template: imports took %.1f s %s", template.elapsed_s, said)
        self._go_on()

    def _go_on(self) -> None:
        template = self._template
        while self._waiting and template is not None and not template.busy:
            provider, then = self._waiting[0]
            if provider and template.ready and template.bound != provider:
                template.bind(provider)
                self._loop.watch(template, self._on_answer)
            else:
                del self._waiting[0]
                then(template)

    def reaped(self, pid: int, returncode: int) -> bool:
        """Take note of an exit status; False if ``pid`` is not the template."""
        if self._template is None or self._template.pid != pid:
            return False
        log.info("template: ended with status %d", returncode)
        self._template.reaped(returncode)
        return True

    def end(self) -> None:
        """End the template."""
        self.forget_waiting()
        self._drop()

    def forget_waiting(self) -> None:
        """Never call those who wait for a template."""
        self._waiting.clear()

    def _drop(self) -> None:
        if self._template is not None:
            self._loop.forget(self._template)
            self._template.end()
            self._template = None
