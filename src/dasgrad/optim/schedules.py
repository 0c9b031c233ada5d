"""Schedules the paper assumes: α/√t for the step size, and a falling β₁."""

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class InverseSqrtLR(LRScheduler):
    """The learning rate α/√t at step t, counted from 1; call ``step()`` once after each optimizer step.

    Example:
        >>> import torch, dasgrad
        >>> optimizer = dasgrad.DASGrad([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        >>> scheduler = dasgrad.InverseSqrtLR(optimizer)
        >>> for _ in range(3):
        ...     optimizer.step()
        ...     scheduler.step()
        >>> scheduler.get_last_lr()
        [0.05]
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """α/√t of every param group; t = ``last_epoch`` + 1."""
        return [base_lr / (self.last_epoch + 1) ** 0.5 for base_lr in self.base_lrs]


class Beta1Decay:
    """β₁ₜ = β₁ / t^power: the falling momentum without which ``weighting="update"`` need not converge.

    Works on any optimizer whose param groups hold ``betas``. Call ``step()`` once after each optimizer step.

    Args:
        optimizer: its ``betas`` at this moment are the start, β₁₁ = β₁.
        power: at least 0, so that β₁ₜ never rises; 1 is the paper's β₁/t.

    Raises:
        ValueError: for a negative power; for a param group without betas, with bias correction (which
            assumes a constant β₁), or capturable (a graph would keep the β₁ it was captured with).
    """

    def __init__(self, optimizer: Optimizer, power: float = 1.0) -> None:
        if not 0.0 <= power < float("inf"):
            raise ValueError(f"`Beta1Decay(power=...)` must be finite and at least 0, got {power!r}.")
        for k, group in enumerate(optimizer.param_groups):
            if "betas" not in group:
                raise ValueError(f"`Beta1Decay(optimizer=...)` needs `betas` in param group {k}.")
            if group.get("bias_correction", True):
                raise ValueError(
                    f"`Beta1Decay` cannot be joined with bias correction, which assumes a constant β₁ "
                    f"(param group {k})."
                )
            if group.get("capturable", False):
                raise ValueError(f"`Beta1Decay` cannot be joined with capturable=True (param group {k}).")
        self.optimizer = optimizer
        self.power = power
        self.base_beta1s = [group["betas"][0] for group in optimizer.param_groups]
        self.last_step = 0

    def step(self) -> None:
        """Set β₁ for the next optimizer step."""
        self.last_step += 1
        for base, group in zip(self.base_beta1s, self.optimizer.param_groups, strict=True):
            group["betas"] = (base / (self.last_step + 1) ** self.power, group["betas"][1])

    def state_dict(self) -> dict[str, Any]:
        """The schedule's state; the betas themselves are the optimizer's."""
        return {"power": self.power, "base_beta1s": list(self.base_beta1s), "last_step": self.last_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore ``state_dict()``."""
        self.power = state_dict["power"]
        self.base_beta1s = list(state_dict["base_beta1s"])
        self.last_step = state_dict["last_step"]
