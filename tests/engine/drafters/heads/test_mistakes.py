"""The comparison with the recordings can fail: deliberate mistakes in every family, each of which it must see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.drafters.heads.layers import Block
from tests.engine.drafters.heads import replays
from tests.engine.drafters.heads.cases import Mismatch, World, has

Tensors = dict[str, Tensor]


def swap_halves(*names: str) -> Callable[[Tensors], None]:
    """The two inputs that are put side by side, in the other order."""

    def change(tensors: Tensors) -> None:
        for name in names:
            a, b = tensors[name].chunk(2, dim=1)
            tensors[name] = torch.cat((b, a), dim=1)

    return change


def drop(*names: str) -> Callable[[Tensors], None]:
    """Tensors that someone forgot."""

    def change(tensors: Tensors) -> None:
        for name in names:
            del tensors[name]

    return change


def later_positions(world: World) -> None:
    """Drafted tokens at their own place instead of their hidden state's."""
    rotary = world.head.features.rotary
    at = rotary.at
    rotary.at = lambda positions: at(positions + (positions == positions[0]).all() * int(len(positions) > 1))


def causal_siblings(world: World) -> None:
    level = world.head.features.level
    world.head.features.level = lambda depth, parents, tokens, siblings=False: level(depth, parents, tokens, True)


def wrong_parent(world: World) -> None:
    """Every token paired with the first row of the level above."""
    level = world.head.features.level
    world.head.features.level = lambda depth, parents, tokens, siblings=False: level(depth, [0] * len(parents), tokens, siblings)


def guessed_states_stay(world: World) -> None:
    """The drafted rows' keys and values are taken for confirmed ones."""
    extend, features = world.drafter.head.extend, world.head.features

    def keep(tokens: Tensor, taps: Tensor) -> None:
        known = len(tokens) - 1 if features.length else 0
        features.cache.length += known
        extend(tokens[known:], taps[known:])

    world.drafter.head.extend = keep


def norm_before_head(world: World) -> None:
    logits = world.head.logits
    world.head.logits = lambda hidden: logits(F.rms_norm(hidden, hidden.shape[-1:]))


def head_without_norm(world: World) -> None:
    world.head._norm = lambda hidden: hidden


def normed_feedback(world: World) -> None:
    """The next level continues from what the LM head reads, instead of from before its norm."""
    features, norm = world.head.features, world.head._norm
    level = features.level

    def after(depth: int, parents: list[int], tokens: list[int], siblings: bool = False) -> Tensor:
        features._out = norm(features._out)
        return level(depth, parents, tokens, siblings)

    features.level = after


def no_way_around(world: World) -> None:
    """Residual blocks without their residual."""
    for blocks in world.head._blocks:
        for block in blocks:
            block.__class__ = type("Bare", (Block,), {"__call__": lambda self, x: Block.inner(self, x)})


def first_block_around(world: World) -> None:
    """Gumiho's first block with a residual of the first half."""
    for blocks in world.head._blocks:
        inner = blocks[0].inner
        blocks[0].inner = lambda x, inner=inner: inner(x) + x.chunk(2, dim=-1)[0]


def heads_in_other_order(world: World) -> None:
    world.head._blocks.reverse()


def hidden_state_last(world: World) -> None:
    """[embeddings, h] instead of [h, embeddings]."""
    head, width = world.head.head, world.spec.hidden
    world.head.head = lambda k, x: head(k, torch.cat((x[:, width:], x[:, :width]), dim=-1))


def no_prefix(world: World) -> None:
    """Hydra++ on the target's bare hidden state."""

    class Bare:
        cache = world.head.prefix.cache

        def __call__(self, x: Tensor) -> Tensor:
            return x

    world.head.prefix = Bare()


def prefix_sees_the_tree(world: World) -> None:
    """The prefix cache counts the tree's rows, so that the next round's positions are wrong."""
    grow = world.head.grow

    def after(*args: Any) -> Any:
        tree = grow(*args)
        world.head.prefix.cache.length += 1
        world.head.prefix.cache.reserve(world.head.prefix.cache.length)
        return tree

    world.head.grow = after


def one_position_early(world: World) -> None:
    """The hidden state before the last one."""
    extend = world.drafter.head.extend
    world.drafter.head.extend = lambda tokens, taps: extend(tokens, taps.roll(1, 0))


def token_not_shifted(world: World) -> None:
    """Hidden state i with token i instead of i + 1."""
    extend = world.drafter.head.extend
    world.drafter.head.extend = lambda tokens, taps: extend(tokens.roll(1), taps)


def offsets_as_ids(tensors: Tensors) -> None:
    tensors["d2t"] = tensors["d2t"] - torch.arange(len(tensors["d2t"]))


def later_taps(world: World) -> None:
    needs = world.drafter.needs
    layers = tuple(layer + 1 for layer in needs.taps)
    world.drafter.needs = type(needs)(layers, needs.final, needs.max_nodes, needs.reader)


def taps_in_other_order(tensors: Tensors) -> None:
    a, b, c = tensors["fc.weight"].chunk(3, dim=1)
    tensors["fc.weight"] = torch.cat((c, b, a), dim=1)


QKV = tuple(f"midlayer.self_attn.{x}_proj.weight" for x in "qkv")
EAGLE2: dict[str, dict[str, Any]] = {
    "order of fc's inputs": {"tensor_changes": swap_halves("fc.weight")},
    "fc without its bias": {"tensor_changes": drop("fc.bias")},
    "siblings see one another": {"change": causal_siblings},
    "positions one too high": {"change": later_positions},
    "hidden state of another parent": {"change": wrong_parent},
    "a norm before the LM head": {"change": norm_before_head},
    "rotary base of another config": {"spec_changes": {"rope_theta": 5e5}},
    "tokens not shifted": {"change": token_not_shifted},
    "guessed keys and values stay": {"change": guessed_states_stay},
}
EAGLE3: dict[str, dict[str, Any]] = {
    "order of attention's inputs": {"tensor_changes": swap_halves(*QKV)},
    "d2t taken for ids": {"tensor_changes": offsets_as_ids},
    "outputs instead of inputs as taps": {"change": later_taps},
    "order of the taps": {"tensor_changes": taps_in_other_order},
    "no norm before the LM head": {"change": head_without_norm},
    "normed hidden state fed back": {"change": normed_feedback},
    "residual of the normed input": {"spec_changes": {"norm_before_residual": True}},
}
EAGLE1 = {name: EAGLE2[name] for name in ("order of fc's inputs", "hidden state of another parent", "positions one too high")} | {
    "siblings see one another": {"change": causal_siblings}
}
GUMIHO: dict[str, dict[str, Any]] = {
    "both quirks corrected": {"corrected": True},
    "siblings do not see one another": {
        "change": lambda world: setattr(
            world.head.features, "level", lambda d, p, t, siblings=False, level=world.head.features.level: level(d, p, t, False)
        )
    },
    "order of fc's inputs": {"tensor_changes": swap_halves("fc.weight")},
    "order of the MLP's inputs": {"tensor_changes": swap_halves(*(f"mlp.{m}.0.linear.weight" for m in range(5)))},
    "blocks without residual": {"change": no_way_around},
    "first block with residual": {"change": first_block_around},
    "heads in another order": {"change": heads_in_other_order},
    "rotary base of the target": {"spec_changes": {"rope_theta": 1e4}},
}
HYDRA: dict[str, dict[str, Any]] = {
    "hidden state last": {"change": hidden_state_last},
    "blocks without residual": {"change": no_way_around},
    "hidden state of the position before": {"change": one_position_early},
    "LM head without its bias": {"tensor_changes": drop(*(f"hydra_lm_head.{k}.bias" for k in range(4)))},
}
HYDRAPP: dict[str, dict[str, Any]] = {
    "no prefix layer": {"change": no_prefix},
    "prefix cache counts the tree": {"change": prefix_sees_the_tree},
    "hidden state last": {"change": hidden_state_last},
    "rotary base of another config": {"spec_changes": {"rope_theta": 5e5}},
}
MEDUSA: dict[str, dict[str, Any]] = {
    "blocks without residual": {"change": no_way_around},
    "heads in another order": {"change": heads_in_other_order},
    "hidden state of the position before": {"change": one_position_early},
}
WRONG = [
    ("eagle2", "rounds", replays.eagle2, EAGLE2),
    ("eagle3", "rounds", replays.eagle2, EAGLE3),
    ("eagle1", "rounds", replays.static, EAGLE1),
    ("gumiho", "small_tree", replays.gumiho, GUMIHO),
    ("hydra", "rounds", replays.static, HYDRA),
    ("hydrapp", "rounds", replays.static, HYDRAPP),
    ("medusa", "rounds_mc_sim_7b_63", replays.static, MEDUSA),
]


@pytest.mark.parametrize(
    ("case", "file", "replay", "mistake"),
    [pytest.param(case, file, replay, kinds[name], id=f"{case}: {name}") for case, file, replay, kinds in WRONG for name in kinds],
)
def test_a_mistake_is_seen(case: str, file: str, replay: Callable[..., Any], mistake: dict[str, Any]) -> None:
    if not has(case, file):
        pytest.skip(f"the folder of fixtures has no {case}/{file}")
    with pytest.raises(Mismatch):
        replay(case, file, **mistake)


def test_every_family_has_three_mistakes() -> None:
    assert all(len(kinds) >= 3 for *_, kinds in WRONG)
