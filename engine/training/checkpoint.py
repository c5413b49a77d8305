"""The state of a training on disk: one file, exchanged as a whole, so that a killed run goes on as if nothing had happened.

In float32 on the CPU the weights of a resumed run have the bits of an uninterrupted one: weights, the optimiser's state and the number of
steps decide, and nothing else does (the order of the data follows from seed and epoch).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from engine.errors import EngineError
from engine.training import files
from engine.training.network import Network
from engine.training.optimiser import Optimiser


@dataclass(slots=True)
class Progress:
    """Where a training is."""

    step: int = 0  # steps taken
    steps: int = 0  # in all; 0 until it is known what a step costs
    best_tau: float = 0.0
    best_step: int = 0
    worse: int = 0  # trials since the best
    over: bool = False  # it ended early, or reached its last step


def save_state(file: Path, network: Network, optimiser: Optimiser, progress: Progress) -> None:
    """Write everything. EngineError when the disk is full: the checkpoint before is kept."""
    tensors = {f"model.{name}": p.detach() for name, p in optimiser.named.items()} | optimiser.state()
    files.write(file, save(_plain(tensors), {"progress": json.dumps(asdict(progress))}))


def restore_state(file: Path, network: Network, optimiser: Optimiser) -> Progress | None:
    """Put a checkpoint back; None where there is none. EngineError for one that does not go with these heads."""
    if not file.exists():
        return None
    try:
        with safe_open(str(file), framework="pt") as handle:
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118  not a dict
            progress = Progress(**json.loads(handle.metadata()["progress"]))
        put(network, {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")})
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise EngineError(
            f"The checkpoint {file} cannot be used.",
            "Delete it to train the heads anew from the data that are there, or choose another --out.",
            kind="corrupt_weights",
            detail=str(error),
        ) from error
    optimiser.steps = progress.steps
    optimiser.restore(tensors, progress.step)
    return progress


def save_weights(file: Path, network: Network) -> None:
    """The trainable weights alone."""
    files.write(file, save(_plain({name: p.detach() for name, p in network.named_parameters() if p.requires_grad})))


def restore_weights(file: Path, network: Network) -> None:
    """Put them back."""
    with safe_open(str(file), framework="pt") as handle:
        put(network, {name: handle.get_tensor(name) for name in handle.keys()})  # noqa: SIM118  not a dict


@torch.no_grad()
def put(network: Network, tensors: dict[str, Tensor]) -> None:
    """Exchange all trainable weights. KeyError or RuntimeError where they do not fit."""
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            parameter.copy_(tensors[name])


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
