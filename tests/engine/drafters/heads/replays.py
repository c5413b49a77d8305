"""Replay of each recorded case, call by call and round by round. Raises `Mismatch` at the first difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.decoder.attention import ancestors, depths
from engine.drafters.heads.eagle import Features
from engine.drafters.heads.grow import Tree
from tests.engine.drafters.heads.cases import (
    Compare,
    Mismatch,
    World,
    best_row,
    by_depth,
    compare_layout,
    leaves,
    open_world,
    params,
    ranks,
    retrieve,
)

Change = Callable[[World], None]


class Tape:
    """Hears what goes through a head's transformer layers."""

    def __init__(self, features: Features) -> None:
        self.calls: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = []  # tokens, hidden, positions, visible rows of the tree, outputs
        confirmed, level = features.confirmed, features.level

        def on_confirmed(tokens: Tensor, taps: Tensor) -> Tensor:
            start = features.length
            out = confirmed(tokens, taps)
            positions = torch.arange(start, start + len(tokens))
            self.calls.append((tokens, taps, positions, torch.empty(0), out))
            return out

        def on_level(depth: int, parents: list[int], tokens: list[int], siblings: bool = False) -> Tensor:
            hidden = features._out[torch.tensor(parents)]
            position = torch.full((len(tokens),), features.length + depth - 1)
            out = level(depth, parents, tokens, siblings)
            self.calls.append((torch.tensor(tokens), hidden, position, features._sees, out))
            return out

        features.confirmed, features.level = on_confirmed, on_level  # type: ignore[method-assign]

    def take(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
        calls, self.calls = self.calls, []
        return calls


def eagle2(case: str, file: str, change: Change | None = None, **more: Any) -> Compare:
    """EAGLE-2 and -3."""
    p = params(case, file)
    asked = {"depth": p["depth"], "top_k": p["top_k"], "total": 10**6} | more.pop("spec_changes", {})
    world = open_world(case, file, spec_changes=asked, change=change, **more)
    compare, tape = world.compare, Tape(world.head.features)
    for k in range(compare.rounds):
        pool = world.grow()
        for i, (tokens, hidden, positions, sees, out) in enumerate(tape.take()):
            at = f"r{k}.call{i}."
            compare.ints(at + "in_ids", tokens)
            compare.floats(at + "in_hidden", hidden)
            compare.floats(at + "out_hidden", out)
            compare.ints(at + "position_ids", positions)
            compare.ints(at + "tree_mask", sees)
            compare.floats(at + "head_logits", world.head.logits(out[-1:] if i == 0 else out))
        _smaller(world, pool, p["total"] - 1)
        tape.take()
        _dynamic_round(world, k, pool.best(p["total"] - 1), "verify.draft_input_hidden")
    return compare


def gumiho(case: str, file: str, change: Change | None = None, **more: Any) -> Compare:
    """Gumiho without Full Tree Attention."""
    p = params(case, file)
    asked = {"depth": p["depth"], "top_k": p["top_k"], "mlp_top_k": p["mlptopk"], "pruning": p["pruning"], "total": 10**6}
    asked |= more.pop("spec_changes", {})
    world = open_world(case, file, spec_changes=asked, change=change, **more)
    compare, tape, head = world.compare, Tape(world.head.features), world.head
    heard: list[tuple[Any, ...]] = []
    pairs = head.pairs

    def on_pairs(t1: list[int], h1: Tensor, t2: list[int], h2: Tensor) -> Tensor:
        x = pairs(t1, h1, t2, h2)
        heard.append((t1, h1, t2, h2, x))
        return x

    head.pairs = on_pairs
    for k in range(compare.rounds):
        heard.clear()
        pool = world.grow()
        for i, (tokens, hidden, positions, _, out) in enumerate(tape.take()):
            at = f"r{k}.draft.call{i}.ser."
            compare.ints(at + "in_ids", tokens)
            compare.floats(at + "in_hidden", hidden)
            compare.floats(at + "out_hidden", out)
            compare.ints(at + "position_ids", positions)
            compare.floats(at + "head_logits", world.head._shared.logits(out[-1:] if i == 0 else out))
        t1, h1, t2, h2, x = heard[0]
        at = f"r{k}.draft.call2.mlp."
        compare.ints(at + "in_ids", torch.tensor([t1, t2]).T)
        compare.floats(at + "in_hidden", torch.stack((h1.expand(len(t1), -1), h2), dim=1))
        out = torch.stack([head.mlp(m, x) for m in range(world.spec.n_heads)], dim=1)
        compare.floats(at + "out_hidden", out)
        compare.floats(at + "head_logits", head._shared.logits(out.flatten(0, 1)))
        _smaller(world, pool, p["total"] - 1)
        tape.take()
        _dynamic_round(world, k, pool.best(p["total"] - 1), "verify.tree_hidden")
    return compare


def _smaller(world: World, pool: Tree, most: int) -> None:
    """Growing no more than a budget asks for gives the best nodes of the whole pool."""
    for n in sorted({1, 2, 3, 5, 9, most // 2, most}):
        tree, best = world.grow(n), pool.best(n)
        if (tree.tokens, tree.parents) != (best.tokens, best.parents) or not np.allclose(tree.scores, best.scores, atol=1e-5):
            raise Mismatch(f"{world.compare.case}: {n} nodes: {tree} instead of {best}")


def _dynamic_round(world: World, k: int, tree: Tree, hidden: str) -> None:
    """Layout, verify and commit of a growing tree."""
    compare, at = world.compare, f"r{k}."
    root, before = world.ids[-1], len(world.ids) - 1
    compare_layout(compare, at, tree, root, "tree_mask", "tree_position_ids", 0)
    rows = retrieve(tree.parents, leaves(tree.parents))
    compare.ints(at + "retrieve_indices", rows)
    logits, path, bonus = world.judge(tree)
    compare.ints(at + "verify.tree_argmax", logits.argmax(-1))
    compare.floats(at + hidden, world.target.taps)  # type: ignore[arg-type]
    if at + "verify.tree_logits_first8" in compare.data:
        compare.floats(at + "verify.tree_logits_first8", logits[: compare.data[at + "verify.tree_logits_first8"].shape[1]])
    _ending(world, at, rows, path, before, bonus)


def _ending(world: World, at: str, rows: list[list[int]], path: tuple[int, ...], before: int, bonus: int) -> None:
    compare = world.compare
    compare.ints(at + "best_candidate", best_row(rows, path))
    compare.ints(at + "accept_length", len(path) - 1)
    compare.ints(at + "input_ids_after", world.ids[:-1])
    assert len(world.ids) - 1 == before + len(path) == world.target.length
    compare.ints(at + "next_root", bonus)


def static(case: str, file: str, change: Change | None = None, **more: Any) -> Compare:
    """Medusa, Hydra, Hydra++, EAGLE-1."""
    if case == "medusa":
        choices = ranks(case, "medusa_choices", file.removeprefix("rounds_"))
    else:
        choices = ranks(case, "tree", "hydra_choices" if case.startswith("hydra") else "choices")
    parents_first = tuple(sorted(choices, key=lambda path: (len(path), path)))
    world = open_world(case, file, method="eagle1" if case == "eagle1" else "auto", choices=parents_first, change=change, **more)
    compare, head = world.compare, world.head
    tape = Tape(head.features) if case == "eagle1" else None
    heard: list[tuple[int, Tensor, Tensor, Tensor]] = []
    prefixed: list[Tensor] = []
    if case.startswith("hydra"):
        _listen(head, heard, prefixed)
    for k in range(compare.rounds):
        at = f"r{k}."
        heard.clear()
        prefixed.clear()
        waiting = torch.cat(world.drafter._waiting)
        tree = by_depth(parents_first, world.grow())
        compare.floats(at + "in_hidden", waiting)
        for i, x, out, logits in heard:
            compare.floats(f"{at}head{i}.mlp_in", x)
            compare.floats(f"{at}head{i}.mlp_out", out)
            compare.floats(f"{at}head{i}.logits", logits)
        if prefixed:
            compare.floats(at + "prefix_out", prefixed[0])
        if case == "medusa":
            compare.floats(at + "medusa_logits_last", torch.cat([head.logits(i) for i in range(world.spec.n_heads)]))
        if tape is not None:
            _raw_tops(world, at, tape)
        _static_round(world, at, tree, descending=case != "eagle1")
    return compare


def _raw_tops(world: World, at: str, tape: Tape) -> None:
    """EAGLE-1 records the raw top of every row that it expands."""
    outs = [out[-1:] if i == 0 else out for i, (*_, out) in enumerate(tape.take())]
    logits = world.head.logits(torch.cat(outs))
    values, ids = logits.topk(world.compare.data[at + "draft_topk_index"].shape[-1], dim=-1)
    world.compare.ints(at + "draft_topk_index", ids)
    world.compare.floats(at + "draft_topk_logit", values)


def _listen(head: Any, heard: list[tuple[int, Tensor, Tensor, Tensor]], prefixed: list[Tensor]) -> None:
    plain, prefix = head.head, head.prefix

    def on_head(k: int, x: Tensor) -> tuple[Tensor, Tensor]:
        out, logits = plain(k, x)
        heard.append((k, x, out, logits))
        return out, logits

    head.head = on_head
    if prefix is not None:

        class Listening:
            cache = prefix.cache

            def __call__(self, x: Tensor) -> Tensor:
                out = prefix(x)
                prefixed.append(out)
                return out

        head.prefix = Listening()


def _static_round(world: World, at: str, tree: Tree, descending: bool) -> None:
    compare, parents = world.compare, tuple(tree.parents)
    root, before = world.ids[-1], len(world.ids) - 1
    rows = retrieve(tree.parents, sorted(leaves(tree.parents), reverse=True))
    if not descending:
        rows.sort(key=lambda row: [len(parents) + 1 if i < 0 else i for i in row])
    compare.ints("buf.retrieve_indices", rows)
    for name in ("hydra_attn_mask", "medusa_attn_mask", "tree_attn_mask"):
        compare.ints(f"buf.{name}", ancestors(parents))
    for name in ("hydra_position_ids", "medusa_position_ids", "tree_position_ids"):
        compare.ints(f"buf.{name}", depths(parents))
    compare.ints("buf.max_accepts", [sum(i >= 0 for i in row) - 1 for row in rows])
    tokens = torch.tensor([root, *tree.tokens])
    compare.ints(at + "root", [root])
    compare.ints(at + "tree_candidates", tokens)
    logits, path, bonus = world.judge(tree)
    real = torch.tensor(rows) >= 0  # what stands behind a short path is padding
    for name, values in (("cart_candidates", tokens), ("verify.argmax_by_path", logits.argmax(-1))):
        if at + name in compare.data:
            compare.data[at + name] = compare.data[at + name][real]
            compare.ints(at + name, values[torch.tensor(rows)[real]])
    _ending(world, at, rows, path, before, bonus)
    if f"r{int(at[1:-1]) + 1}.logits_last" in compare.data:
        compare.floats(f"r{int(at[1:-1]) + 1}.logits_last", logits[path[-1]])
