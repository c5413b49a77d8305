"""What the screen remembers of its models, without a screen."""

from __future__ import annotations

from app.loaded import Loaded
from engine.catalog.specs import NGRAM, ModelSpec
from engine.protocol import Failed, Load, LoadOptions, SwapDrafter
from engine.trace import READY
from tests.app.fake_client import FakeClient

BIG, SMALL = ModelSpec("big", "target"), ModelSpec("small", "drafter", "model")
REFUSED = Failed("The method hydra does not go with the drafter small.", "", "config")


def test_a_method_lasts_until_another_drafter_is_chosen_or_it_is_refused() -> None:
    client = FakeClient(lambda command, ready: [])
    sent, loaded = client.sent, Loaded(client, LoadOptions(), "auto", NGRAM)
    loaded.load(BIG)
    loaded.swap(SMALL, "tli")
    loaded.back()
    assert sent[1:] == [SwapDrafter(SMALL, "tli")] * 2
    loaded.swap(NGRAM)
    loaded.back()
    assert sent[3:] == [SwapDrafter(NGRAM)] * 2
    loaded.swap(SMALL, "hydra")
    for _ in sent[:-1]:
        loaded.answered(READY)
    loaded.answered(REFUSED)
    loaded.back()
    assert sent[-1] == SwapDrafter(SMALL)
    loaded.answered(READY)
    loaded.swap(SMALL, "hydra")
    loaded.swap(SMALL, "pf")
    loaded.answered(REFUSED)  # the first of the two
    loaded.back()
    assert sent[-1] == SwapDrafter(SMALL, "pf")
    loaded.load(BIG)
    loaded.back()
    assert isinstance(sent[-2], Load)
    assert sent[-1] == SwapDrafter(SMALL)
