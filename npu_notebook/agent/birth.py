"""What a rank is born with: its facts as JSON and its whole environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from npu_notebook.agent.ending import RANK_MARK
from npu_notebook.agent.template import Birth
from npu_notebook.topology import PLACEMENT_VARIABLES

if TYPE_CHECKING:
    from npu_notebook.devices.provider import DeviceProvider
    from npu_notebook.messages import RankSpec

_PROGRAM = "npu_notebook.rank.worker:run_rank"


class RankBirth(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank's process is told first, as JSON."""

    endpoint: str
    provider: str
    host: str
    spec: RankSpec
    forked: bool


def base_environment() -> dict[str, str]:
    """Return this agent's environment without what other launchers left in it.

    A left-over ``RANK`` or ``MASTER_PORT`` of another job would send a training script
    to the wrong place.
    """
    dropped = set(PLACEMENT_VARIABLES)
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    kept.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does for several ranks
    return kept


def make_birth(facts: RankBirth, provider: DeviceProvider | None) -> Birth:
    """Return what the template, or an exec, makes a rank of.

    Its environment is this agent's, then the cluster's, then the provider's.
    """
    spec = facts.spec
    env = {**base_environment(), **spec.env}
    env |= provider.environment(spec.local_rank) if provider else {}
    env[RANK_MARK] = f"{os.getpid()}.{spec.rank}.{spec.incarnation}"
    return Birth(
        name=f"npu rank {spec.rank}",
        program=_PROGRAM,
        argument=msgspec.json.encode(facts),
        env=env,
        cwd=spec.cwd,
        log_path=spec.log_path,
    )
