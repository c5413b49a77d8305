"""The recorded cases: what the reference implementations computed on tiny random models, replayed by this engine and compared.

The folder comes from SPECCHAT_HEAD_FIXTURES; sizes and tree parameters come from its files alone. Integers must be equal, numbers
within 2e-4 (float32). Every comparison is by name, so that a deliberate mistake shows where it is seen.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.decoder.attention import ancestors, depths
from engine.decoder.load import load_weights
from engine.decoder.target import LeanTarget
from engine.drafters.heads import build as building
from engine.drafters.heads.drafter import HeadsDrafter
from engine.drafters.heads.grow import Path as Ranks
from engine.drafters.heads.grow import Tree
from engine.drafters.heads.load import facts_of, load_head
from engine.drafters.heads.specs import HeadSpec
from engine.speculation import verify
from engine.speculation.draft import Context, Draft, Verdict
from engine.speculation.sampling import Filters, Picker, Row

FOLDER = Path(os.environ.get("SPECCHAT_HEAD_FIXTURES") or Path(__file__).parents[3] / "fixtures" / "heads")
ATOL = 2e-4
WHOLE = 10**6  # nodes: nothing is pruned, so every call of the reference is made
COMPARED: dict[str, int] = {}  # case -> comparisons made in this run


class Mismatch(AssertionError):
    """Ours is not what was recorded."""


@dataclass
class Compare:
    """Counts comparisons. `data` are the recorded arrays; those that a slimmed file leaves out are passed over."""

    case: str
    data: dict[str, Tensor]
    seen: set[str] = field(default_factory=set)
    count: int = 0

    def ints(self, name: str, ours: Any) -> None:
        """Exactly equal."""
        if (theirs := self._theirs(name)) is not None:
            mine = torch.as_tensor(ours).to(torch.int64).reshape(-1)
            if mine.tolist() != theirs.to(torch.int64).reshape(-1).tolist():
                raise Mismatch(f"{self.case}: {name}: {mine.tolist()} instead of {theirs.reshape(-1).tolist()}")

    def floats(self, name: str, ours: Tensor) -> None:
        """Equal within ATOL."""
        if (theirs := self._theirs(name)) is not None:
            mine = ours.float().reshape(-1)
            if mine.numel() != theirs.numel() or not torch.allclose(mine, theirs.reshape(-1), atol=ATOL, rtol=0):
                worst = (mine - theirs.reshape(-1)).abs().max() if mine.numel() == theirs.numel() else "another size"
                raise Mismatch(f"{self.case}: {name}: {worst}")

    def _theirs(self, name: str) -> Tensor | None:
        if name not in self.data:
            return None
        self.seen.add(name)
        self.count += 1
        return self.data[name]

    @property
    def rounds(self) -> int:
        return 1 + max(int(name[1 : name.index(".")]) for name in self.data if name[0] == "r" and name[1].isdigit())

    def left(self, *, but: str = "") -> list[str]:
        """Recorded arrays that nobody looked at."""
        return sorted(name for name in self.data.keys() - self.seen if name != "prompt" and not (but and but in name))


def has(case: str, file: str) -> bool:
    return (FOLDER / case / f"{file}.safetensors").is_file()


def params(case: str, file: str) -> dict[str, int]:
    return dict(json.loads((FOLDER / case / "params.json").read_text())[file])


def ranks(case: str, file: str, key: str) -> tuple[Ranks, ...]:
    return tuple(tuple(path) for path in json.loads((FOLDER / case / f"{file}.json").read_text())[key])


def open_base(case: str) -> LeanTarget:
    weights = load_weights(FOLDER / case / "base", quant="fp32", head="fp32", use_cache=False)
    return LeanTarget(weights, weights.config.max_position)


def open_head(case: str, target: LeanTarget, method: str = "auto", **changes: Any) -> tuple[HeadSpec, dict[str, Tensor]]:
    spec, tensors = load_head(FOLDER / case / "head", facts_of(target.model.config, case), method)
    return replace(spec, **changes), tensors


@dataclass
class World:
    """A case with its models, ready to be replayed round by round."""

    compare: Compare
    target: LeanTarget
    drafter: HeadsDrafter
    spec: HeadSpec
    ids: list[int] = field(default_factory=list)

    @property
    def head(self) -> Any:
        return self.drafter.head

    def context(self, budget: int) -> Context:
        return Context(self.ids, 0, 0, Picker(Filters(), 0), lambda source: budget, self.target.vocab_size)

    def begin(self) -> None:
        """Read the prompt; its last token gives the first root."""
        prompt = self.compare.data["prompt"].reshape(-1).tolist()
        self.target.needs = self.drafter.needs
        rows: list[Tensor] = []
        self.target.prefill(prompt[:-1], sink=lambda start, taps: rows.append(taps))
        logits = self.target.verify(torch.tensor(prompt[-1:]), ())
        assert self.target.taps is not None
        self.target.keep((0,))
        hidden = torch.cat((*rows, self.target.taps))
        self.compare.floats("prefill.hidden", hidden)
        self.compare.floats("prefill.draft_input_hidden", hidden)
        self.compare.floats("prefill.logits_last", logits)
        self.compare.floats("r0.logits_last", logits)
        if "prefill.logits" in self.compare.data:
            self.compare.floats("prefill.logits", self.target.model.head(hidden))
        self.ids = [*prompt, int(logits.argmax())]
        self.drafter.absorb(self.ids, 0, hidden)

    def grow(self, budget: int = WHOLE) -> Tree:
        """The tree of at most `budget` nodes; without one the unpruned pool."""
        self.drafter._read(self.drafter._held)
        assert self.head.length == len(self.ids) - 1  # draft KV: a pair for each confirmed position
        picker = Picker(Filters(), 0)

        def choose(logits: Tensor, paths: list[Ranks], k: int) -> tuple[np.ndarray, np.ndarray]:
            return picker.top(logits, [Row(0, path) for path in paths], k, self.head.names)

        return self.head.grow(self.ids[-1], budget, choose)

    def judge(self, tree: Tree) -> tuple[Tensor, tuple[int, ...], int]:
        """Verify and commit: logits of the tree, the kept path, the next root."""
        draft = Draft(tuple(tree.tokens), tuple(tree.parents))
        logits = self.target.verify(torch.tensor([self.ids[-1], *tree.tokens]), draft.parents)
        path, emitted = verify.match(draft, Picker(Filters(), 0).pick(logits, [Row(0)] * len(logits)))
        self.target.keep(path)
        assert self.target.taps is not None
        self.ids = [*self.ids, *emitted]
        self.drafter.commit(self.context(0), Verdict(path, emitted, self.target.taps[list(path)]))
        return logits, path, emitted[-1]


def open_world(
    case: str,
    file: str,
    method: str = "auto",
    choices: tuple[Ranks, ...] | None = None,
    change: Callable[[World], None] | None = None,
    spec_changes: dict[str, Any] | None = None,
    tensor_changes: Callable[[dict[str, Tensor]], None] | None = None,
    corrected: bool = False,
) -> World:
    """`change`, `spec_changes`, `tensor_changes` are for deliberate mistakes and for parameters of trees."""
    compare = Compare(f"{case}/{file}", load_file(FOLDER / case / f"{file}.safetensors"))
    target = open_base(case)
    spec, tensors = open_head(case, target, method, **(spec_changes or {}))
    if tensor_changes is not None:
        tensor_changes(tensors)
    drafter, _ = building.build(case, spec, tensors, target, "fp32", corrected, choices)
    world = World(compare, target, drafter, spec)
    if change is not None:
        change(world)
    world.begin()
    return world


def retrieve(parents: list[int], order: list[int]) -> list[list[int]]:
    """One row per leaf, root first, -1 padded. `order` are the leaves."""
    deepest = max(depths(tuple(parents)))
    rows: list[list[int]] = []
    for leaf in order:
        path = [leaf]
        while path[-1]:
            path.append(parents[path[-1] - 1])
        rows.append([*reversed(path), *([-1] * (deepest + 1 - len(path)))])
    return rows


def leaves(parents: list[int]) -> list[int]:
    return [row for row in range(1, len(parents) + 1) if row not in parents]


def best_row(rows: list[list[int]], path: tuple[int, ...]) -> int:
    """The first row that begins with the kept path."""
    return next(i for i, row in enumerate(rows) if tuple(row[: len(path)]) == path)


def compare_layout(compare: Compare, prefix: str, tree: Tree, root: int, mask: str, positions: str, length: int) -> None:
    """Tokens, mask and positions of a laid-out tree; positions as the reference stores them, with or without the text's length."""
    compare.ints(f"{prefix}draft_tokens", [root, *tree.tokens])
    compare.ints(f"{prefix}{mask}", ancestors(tuple(tree.parents)))
    compare.ints(f"{prefix}{positions}", [length + d for d in depths(tuple(tree.parents))])


def by_depth(choices: tuple[Ranks, ...], tree: Tree) -> Tree:
    """A static tree in the order of the references: by length, then by path."""
    order = sorted(range(len(choices)), key=lambda i: (len(choices[i]), choices[i]))
    return tree.part(order)
