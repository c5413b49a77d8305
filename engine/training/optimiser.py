"""AdamW with warm-up, cosine decay and clipped gradients; its state as plain tensors, so that a checkpoint can hold it exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from engine.training.network import Network

PEAK = 1e-3  # learning rate
LAST = 0.02  # … at the end, relative to the peak
WARM_UP = 0.04  # share of all steps
BETAS = (0.9, 0.95)
DECAY = 0.05
CLIP = 1.0
STATE = ("exp_avg", "exp_avg_sq")


class Optimiser:
    """Steps a network. Matrices decay, vectors do not."""

    def __init__(self, network: Network, steps: int, peak: float = PEAK) -> None:
        self.steps, self._peak = steps, peak
        self.named = {name: p for name, p in network.named_parameters() if p.requires_grad}  # a repeated block once
        groups = [
            {"params": [p for p in self.named.values() if p.ndim > 1], "weight_decay": DECAY},
            {"params": [p for p in self.named.values() if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self._adam = torch.optim.AdamW(groups, lr=peak, betas=BETAS, fused=True)

    def rate(self, step: int) -> float:
        """Learning rate of a step, from 0."""
        warm = max(1, round(WARM_UP * self.steps))
        if step < warm:
            return self._peak * (step + 1) / warm
        done = min(1.0, (step - warm) / max(1, self.steps - warm))
        return self._peak * (LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * done)))

    def step(self, step: int) -> None:
        """Apply the gradients that are there and clear them."""
        for group in self._adam.param_groups:
            group["lr"] = self.rate(step)
        torch.nn.utils.clip_grad_norm_(self.named.values(), CLIP)
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Everything that the next step depends on but the weights and gradients."""
        out: dict[str, Tensor] = {}
        for name, parameter in self.named.items():
            held = self._adam.state.get(parameter, {})
            out |= {f"{key}.{name}": held[key] for key in STATE if key in held}
        return out

    def restore(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Go on behind `step` steps."""
        for name, parameter in self.named.items():
            if f"{STATE[0]}.{name}" in tensors:
                held = {key: tensors[f"{key}.{name}"].to(parameter) for key in STATE}
                self._adam.state[parameter] = {"step": torch.tensor(float(step)), **held}
