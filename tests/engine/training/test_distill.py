"""Self-distillation: a reply follows from its prompt alone, and what is kept is what plain decoding says."""

from __future__ import annotations

import pytest
import torch

from engine.decoder.target import LeanTarget
from engine.decoder.tokenizer import Tokenizer, load_tokenizer
from engine.training import distill
from engine.training.distill import Distiller, looping
from engine.training.shards import Text
from tests.engine.training.test_lanes import alone
from tests.engine.training.worlds import stored_target, taking
from tests.tiny_disk import tiny_model


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> tuple[LeanTarget, Tokenizer]:
    folder = tiny_model(tmp_path_factory.mktemp("distill") / "target", 3)
    return stored_target(folder), load_tokenizer(folder)


def answers(opened: tuple[LeanTarget, Tokenizer], n: int, lanes: int) -> dict[int, Text]:
    found: list[Text] = []
    distiller = Distiller(*opened, lanes=lanes, noise=1)
    assert distiller.run(taking(n), lambda: True, found.append, lambda: False)
    assert distiller.tokens == sum(text.replied for text in found)
    distiller.close()
    return {text.number: text for text in found}


def test_replies_are_those_of_plain_decoding(opened: tuple[LeanTarget, Tokenizer]) -> None:
    target, tokenizer = opened
    found = answers(opened, 9, 4)
    for seed in taking(9):
        text = found[seed.number]
        logits, hidden = alone(target, text.ids[:-1].tolist(), text.start - 1)
        assert text.replied <= seed.max_tokens
        assert torch.allclose(text.hidden[text.start - 1 :], hidden, atol=1e-5)
        if seed.temperature == 0.0:
            assert text.ids[text.start :].tolist() == logits.argmax(-1).tolist()
        chances = torch.softmax(logits.double(), -1)
        assert torch.allclose(text.top_chances.double(), chances.topk(8).values, atol=1e-5)
        assert (text.top_ids[:, 0] == logits.argmax(-1)).all()
        ended = int(text.ids[-1]) in tokenizer.eos_ids
        assert ended or text.replied == seed.max_tokens or looping(text.ids[text.start :].tolist())


@pytest.mark.parametrize("lanes", [1, 3, 16])
def test_what_shares_a_pass_changes_nothing(opened: tuple[LeanTarget, Tokenizer], lanes: int) -> None:
    whole, some = answers(opened, 8, 8), answers(opened, 8, lanes)
    assert whole.keys() == some.keys() == set(range(8))
    assert all(torch.equal(whole[number].ids, some[number].ids) for number in whole)


def test_hidden_states_of_the_prompt_are_there(opened: tuple[LeanTarget, Tokenizer]) -> None:
    target, _ = opened
    for text in answers(opened, 4, 2).values():
        _, hidden = alone(target, text.ids[:-1].tolist(), 0)
        assert text.hidden.shape == hidden.shape
        assert torch.allclose(text.hidden, hidden, atol=1e-4)


def test_it_stops_between_steps(opened: tuple[LeanTarget, Tokenizer]) -> None:
    found: list[Text] = []
    distiller = Distiller(*opened, lanes=2, noise=1)
    assert not distiller.run(taking(50), lambda: True, found.append, lambda: len(found) >= 3)
    assert 3 <= len(found) <= 4


def test_a_long_prompt_keeps_both_ends(opened: tuple[LeanTarget, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distill, "LONGEST_PROMPT", 16)
    for text in answers(opened, 3, 3).values():
        assert text.start == 16
        assert text.hidden.shape[0] == len(text.ids) - 1


def test_loops() -> None:
    assert looping([1, 2, 3] + [7] * 16)
    assert looping([5] + [1, 2, 3, 4, 5] * 4)
    assert not looping([7] * 8)
    assert not looping(list(range(64)))
    assert not looping([1, 2, 3, 4, 5] * 3)
