"""Every recorded case, in float32: hidden states, logits, trees, masks, positions, ids after each round, next root."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.engine.drafters.heads import replays
from tests.engine.drafters.heads.cases import COMPARED, Compare, has

CASES: list[tuple[str, str, Callable[..., Compare], str]] = [  # case, file, replay, arrays that are only the reference's own buffers
    ("gumiho", "small_tree", replays.gumiho, ""),
    ("gumiho", "default_tree", replays.gumiho, ""),
    ("hydra", "rounds", replays.static, "buf.tree_indices"),
    ("hydrapp", "rounds", replays.static, "buf.tree_indices"),
    ("medusa", "rounds_mc_sim_7b_63", replays.static, "buf.tree_indices"),
    ("eagle1", "rounds", replays.static, "buf.tree_indices"),
    ("eagle2", "rounds", replays.eagle2, ""),
    ("eagle2", "default_tree", replays.eagle2, ""),
    ("eagle2_llama3style", "rounds", replays.eagle2, ""),
    ("eagle2_llama3style", "default_tree", replays.eagle2, ""),
    ("eagle3", "rounds", replays.eagle2, ""),
    ("eagle3", "default_tree", replays.eagle2, ""),
]


@pytest.mark.parametrize(("case", "file", "replay", "apart"), CASES, ids=[f"{case}-{file}" for case, file, *_ in CASES])
def test_recorded_case(case: str, file: str, replay: Callable[..., Compare], apart: str) -> None:
    if not has(case, file):
        pytest.skip(f"the folder of fixtures has no {case}/{file}")
    compare = replay(case, file)
    assert not compare.left(but=apart)  # everything that was recorded was looked at
    assert len(compare.seen) > 5
    COMPARED[compare.case] = compare.count
