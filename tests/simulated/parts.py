"""What several checks build on. Imported in the rank processes only."""

from collections.abc import Callable

import torch
from torch import nn


def mlp() -> nn.Sequential:
    """Return a small network, the same one on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


class Feedforward(nn.Module):
    """The feed-forward half of a transformer block, 16 features wide."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        return self.norm(x + self.down(torch.relu(self.up(x))))


def raises(
    kind: type[BaseException] | tuple[type[BaseException], ...],
    call: Callable[[], object],
    *words: str,
) -> str:
    """Check that a call raises an error of a kind that says each word."""
    try:
        call()
    except kind as error:
        text = str(error)
        for word in words:
            assert word.lower() in text.lower(), f"{text!r} lacks {word!r}"
        return text
    problem = f"nothing was raised, {kind} was expected"
    raise AssertionError(problem)


def on_npu(*values: object, **options: object) -> torch.Tensor:
    """Return a tensor on this rank's device."""
    return torch.tensor(*values, device="npu", **options)


def assert_same_parameters(
    reference: nn.Module, module: nn.Module, rtol: float = 1e-4, atol: float = 1e-5
) -> None:
    """Check that a module on an NPU has the parameters of one on the CPU."""
    for expected, found in zip(
        reference.parameters(), module.parameters(), strict=True
    ):
        values = found.full_tensor() if hasattr(found, "full_tensor") else found
        assert values.device.type == "npu"
        torch.testing.assert_close(
            expected.detach(), values.detach().cpu(), rtol=rtol, atol=atol
        )


def train(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: torch.Tensor,
    *,
    steps: int = 3,
    max_norm: float | None = None,
) -> None:
    """Take a few steps towards zero output."""
    for _ in range(steps):
        optimizer.zero_grad()
        module(batch).pow(2).mean().backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), max_norm)
        optimizer.step()
