"""What a benchmark found out: ours, the reference of the same run, and the goal."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity.

    Attributes
    ----------
    what : str
        What was measured, for a reader who sees nothing else.
    unit : str
        Unit of ``ours`` and ``reference``.
    ours : tuple of float
        One sample per repetition.
    reference : tuple of float
        Samples of the reference, taken in turns with ours; empty if there is none.
    reference_name : str
        What the reference is.
    limit : float or None
        The goal: at most this; None for a figure that is only reported.
    limit_of : {"ratio", "value"}
        What the goal is about: ours divided by the reference, or ours alone.
    note : str
        What else a reader must know.
    """

    what: str
    unit: str
    ours: tuple[float, ...]
    reference: tuple[float, ...] = ()
    reference_name: str = ""
    limit: float | None = None
    limit_of: Literal["ratio", "value"] = "ratio"
    note: str = ""

    @property
    def median(self) -> float:
        """Median of ours."""
        return statistics.median(self.ours)

    @property
    def reference_median(self) -> float | None:
        """Median of the reference, None if there is none."""
        return statistics.median(self.reference) if self.reference else None

    @property
    def ratio(self) -> float | None:
        """Ours divided by the reference, None without a reference.

        Notes
        -----
        Of medians: one sample in ten is several times too long on a machine that does
        other things as well.
        """
        reference = self.reference_median
        return self.median / reference if reference else None

    @property
    def passed(self) -> bool | None:
        """Whether the goal is met; None if there is none."""
        measured = self.ratio if self.limit_of == "ratio" else self.median
        if self.limit is None or measured is None:
            return None
        return measured <= self.limit

    @property
    def goal(self) -> str:
        """The goal in words.

        Examples
        --------
        >>> Figure("x", "s", (1.0,), (2.0,), limit=0.7).goal
        'ratio <= 0.7'
        >>> Figure("x", "MB", (1.0,), limit=25, limit_of="value").goal
        '<= 25 MB'
        """
        if self.limit is None:
            return ""
        if self.limit_of == "ratio":
            return f"ratio <= {self.limit:g}"
        return f"<= {self.limit:g} {self.unit}"


def spread(samples: Sequence[float]) -> tuple[float, float]:
    """Return the first and the ninth decile; of few samples, the smallest and largest.

    Examples
    --------
    >>> spread([3.0, 1.0, 2.0])
    (1.0, 3.0)
    """
    enough = 20
    if len(samples) < enough:
        return min(samples), max(samples)
    deciles = statistics.quantiles(samples, n=10)
    return deciles[0], deciles[-1]
