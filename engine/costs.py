"""What a pass of this target costs on this machine by its number of rows, timed at load: the controller decides by it."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import perf_counter

import torch

from engine.cuda import notebook
from engine.decoder.target import Target
from engine.speculation.control import Controller
from engine.speculation.draft import Drafter

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16)
WARM = (1, 2, 3, 4, 5, 6, 8)  # passes that are recorded at once where their costs are known
TREE_WIDTHS = (1, 3, 4, 6, 8, 12, 16, 24, 40, 64)
FEWEST_OF_A_TREE = 20  # drafters that can use so many nodes branch


def measure(target: Target, drafter: Drafter, control: Controller, begin: Callable[[], None], name: str = "") -> None:
    """Time what is not known yet. `begin` is called before that takes time. On a card, what was measured under this name (model and
    scheme) is kept for the next start."""
    trees = drafter.needs.max_nodes >= FEWEST_OF_A_TREE
    if control.verify.known and (control.trees.known or not trees):
        return
    device = torch.device(getattr(target, "device", "cpu"))
    records = getattr(target, "static", None) is not None
    kept = _kept(device, f"costs of {name}") if name else None
    kept_trees = _kept(device, f"costs of {name}, trees") if name and trees else None
    if (kept is None and not control.verify.known) or (kept_trees is None and trees):
        begin()
    if not control.verify.known:
        if kept is None:
            kept = _costs(target, WIDTHS, lambda row: row, times=2)  # the first pass of a width makes its program
            notebook.remember(device, f"costs of {name}", kept)
        else:
            _costs(target, WARM, lambda row: row)
        control.measured(kept)
    if trees:  # half of the rows are leaves
        if kept_trees is None:
            kept_trees = _costs(target, TREE_WIDTHS, lambda row: row // 2, times=2 if records else 1)
            notebook.remember(device, f"costs of {name}, trees", kept_trees)
        control.measured_trees(kept_trees)


def _kept(device: torch.device, what: str) -> dict[int, float] | None:
    """Costs that were measured on this card before."""
    try:
        costs = {int(rows): float(seconds) for rows, seconds in notebook.recall(device, what).items()}
    except (AttributeError, TypeError, ValueError):
        return None
    return costs if len(costs) > 1 and min(costs.values()) > 0.0 else None


def curve(target: Target, widths: tuple[int, ...]) -> dict[int, float]:
    """Seconds of a pass of a chain by its number of rows."""
    return _costs(target, widths, lambda row: row, times=2)


def _costs(target: Target, widths: tuple[int, ...], parent: Callable[[int], int], times: int = 1) -> dict[int, float]:
    """Seconds of a pass by its number of rows, the quickest of so many; row i + 1 hangs below row parent(i)."""
    costs: dict[int, float] = {}
    held = target.length
    for width in (1, *(width for width in widths for _ in range(times)), 1):  # the first pass warms up, all are weighed against one row
        if width > target.max_nodes + 1:
            break
        tokens = torch.arange(width) * 997 % target.vocab_size  # unlike ones: in a model with experts each row may wake others
        begun = perf_counter()
        target.verify(tokens, tuple(parent(row) for row in range(width - 1))).argmax(-1).tolist()
        costs[width] = min(perf_counter() - begun, costs.get(width, inf))
        held = target.truncate(held)  # transformers' cache takes no second pass before; one that cannot go back forgets all
    return costs
