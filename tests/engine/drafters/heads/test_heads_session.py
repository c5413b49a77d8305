"""A chat with heads beside the target: turns, swaps in mid-reply, stops; and whole loads through the engine's face."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from app.cli import invoke
from engine.catalog.specs import NONE, ModelSpec
from engine.drafters.heads import layout
from engine.drafters.heads.specs import TREES, Family, HeadSpec
from engine.drafters.ngram import Ngram
from engine.drafters.stacked import Stacked
from engine.protocol import Done, Event, Failed, Generate, Load, Loading, LoadOptions, Message, Ready, Sampling, Step, SwapDrafter
from tests.engine.drafters.heads.worlds import FAMILIES, make_heads, make_target
from tests.engine.test_session import ALPHABET, Chat
from tests.engine.test_thread import Face
from tests.tiny_disk import spec_of, tiny_model

QUESTIONS = ("hello there", "and then?", "go on, please", "once more")


class HeadsChat(Chat):
    """A chat whose events may be of a drafter that reads the text."""

    def check(self, done: Done) -> None:
        events = self.events
        self.events = [e for e in events if not isinstance(e, Loading)]
        super().check(done)
        self.events = events

    @property
    def loadings(self) -> list[Loading]:
        return [e for e in self.events if isinstance(e, Loading)]


def make_chat(family: Family, context: int = 700) -> HeadsChat:
    return HeadsChat(make_target(3, len(ALPHABET), family, torch.float64, context))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_turn_is_the_same_with_heads(family: Family) -> None:
    """Also with a part in front that knows nothing of hidden states, and with k fixed or not."""
    texts, kept = [], 0
    for kind in ("none", "heads", "stacked"):
        chat = make_chat(family)
        if kind != "none":
            heads = make_heads(family, chat.target)
            chat.use(heads if kind == "heads" else Stacked([Ngram(min_match=2), heads]))
        out = []
        for turn, question in enumerate(QUESTIONS):
            out.append(chat.ask(question, k=None if turn == 3 else 12).token_ids)
            kept += sum(e.accepted for e in chat.events if isinstance(e, Step))
            assert not chat.loadings
            if kind != "none" and turn < 3:  # in the last turn the controller may find that random heads do not pay
                assert chat.session.tally.nodes > 0
        texts.append(out)
    assert texts[0] == texts[1] == texts[2]
    assert kept > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_come_and_go_in_mid_reply(family: Family) -> None:
    """They read the text from the cache, with progress, and leave every key and value as it was."""
    plain, swapped = make_chat(family), make_chat(family)
    heads = make_heads(family, swapped.target)
    for question in QUESTIONS[:2]:
        expected = plain.ask(question, max_tokens=40)
        steps = itertools.count(1)

        def between(steps: Iterator[int] = steps) -> None:
            step = next(steps)
            swapped.use(heads if 8 <= step < 14 or step > 18 else None)

        done = swapped.ask(question, max_tokens=40, between=between, k=6)
        assert done.token_ids == expected.token_ids
        assert len(swapped.loadings) >= 2  # it came twice
        assert all(e.unit == "tokens" and 0 < e.done <= e.total for e in swapped.loadings)
        assert any(e.nodes for e in swapped.events if isinstance(e, Step))
    for a, b in zip(plain.target.cache.groups, swapped.target.cache.groups, strict=True):
        length = swapped.target.length
        assert torch.allclose(a.store[..., :length, :], b.store[..., :length, :], atol=1e-9)
    swapped.use(None)
    swapped.ask(QUESTIONS[2])
    assert swapped.target.needs.reader is None
    assert swapped.target.taps is None  # nothing is exported for nobody


def test_regenerating_and_stopping_while_reading() -> None:
    chat, plain = make_chat("eagle2", 2400), make_chat("eagle2", 2400)
    chat.use(make_heads("eagle2", chat.target))
    long = "a" * 1400
    asked = iter([False, True])
    assert chat.ask(long, cancelled=lambda: next(asked)).finish_reason == "cancelled"
    chat.messages.clear()
    chat.number = 0
    for _ in range(2):  # the second time nothing is left to read but the root
        plain.messages.clear()
        chat.messages.clear()
        plain.number = chat.number = 0
        assert chat.ask(long, k=20).token_ids == plain.ask(long).token_ids
        assert chat.session.tally.nodes > 0


def test_two_readers_cannot_stand_in_line() -> None:
    target = make_target(3, 32)
    with pytest.raises(AssertionError):
        Stacked([make_heads("eagle2", target), make_heads("eagle2", target)])
    needs = Stacked([Ngram(), make_heads("gumiho", target)]).needs
    assert (needs.final, needs.max_nodes) == (True, 63)


# --- whole loads ----------------------------------------------------------------------------------------------------


def write_heads(folder: Path, spec: HeadSpec, config: dict[str, Any], file: str) -> Path:
    folder.mkdir(parents=True)
    made = torch.Generator().manual_seed(5)
    tensors = {
        name: (torch.randn(shape, generator=made) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.2)).half()
        for name, shape in layout.expected(spec).items()
    }
    torch.save(tensors, folder / file)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelSpec]:
    """A tiny target on disk, and heads for it."""
    at = tmp_path_factory.mktemp("heads")
    target = spec_of(tiny_model(at / "target", 1), params=1.0)
    vocab = json.loads((at / "target" / "config.json").read_text())["vocab_size"]
    sizes: dict[str, Any] = {"intermediate": 128, "heads": 4, "kv_heads": 2, "head_dim": 16}
    llama = {
        "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": vocab,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 256, "num_hidden_layers": 1, "hidden_act": "silu", "model_type": "llama",
    }  # fmt: skip
    eagle = HeadSpec("eagle2", 64, vocab, vocab, 64, layers=1, own_embedding=True, fc_bias=True, **sizes)
    hydra = HeadSpec("hydra", 64, vocab, vocab, 64, n_heads=4, head_layers=1, own_lm_head=True, **TREES["hydra"])
    said = {"hydra_num_heads": 4, "hydra_num_layers": 1, "hydra_head_arch": "mlp", "grounded_heads": True, "hidden_state_offset": 0}
    narrow = replace(eagle, hidden=32, target_hidden=32, heads=2)
    return {
        "target": target,
        "eagle": spec_of(write_heads(at / "eagle", eagle, llama, "pytorch_model.bin"), "drafter", kind="heads"),
        "hydra": spec_of(write_heads(at / "hydra", hydra, said, "hydra_lm_head.pt"), "drafter", kind="heads"),
        "narrow": spec_of(
            write_heads(at / "narrow", narrow, llama | {"hidden_size": 32, "num_attention_heads": 2}, "pytorch_model.bin"),
            "drafter",
            kind="heads",
        ),
    }


def told(face: Face, load: Any) -> Ready | Failed:
    face.send(load)
    seen = face.until(lambda e: isinstance(e, Ready | Failed))
    return next(e for e in seen if isinstance(e, Ready | Failed))


def answer(face: Face, reply: int, **more: Any) -> tuple[Done, list[Step]]:
    face.send(Generate(reply, (Message("user", "tell me"),), seed=9, max_tokens=40, sampling=Sampling(temperature=0.7), **more))
    seen: list[Event] = face.until(lambda e: isinstance(e, Done | Failed))
    done = next(e for e in seen if isinstance(e, Done | Failed))
    assert isinstance(done, Done), done
    return done, [e for e in seen if isinstance(e, Step)]


@pytest.fixture
def face() -> Any:
    face = Face()
    yield face
    face.client.close()


@pytest.mark.parametrize(
    "options", [LoadOptions(device="cpu", quant="fp32"), LoadOptions(device="cpu", quant="int8")], ids=["fp32", "int8"]
)
def test_a_whole_load_with_heads(face: Any, disk: dict[str, ModelSpec], options: LoadOptions) -> None:
    """Load, reply, swap to other heads, to none, and to heads of another target."""
    ready = told(face, Load(disk["target"], disk["eagle"], options))
    assert isinstance(ready, Ready), ready
    assert (ready.drafter, ready.method, ready.draft_quant) == ("eagle", "eagle2", options.quant)  # quantized as the target is
    assert ready.memory.drafter > 0
    texts = []
    for reply, (drafter, method, shown) in enumerate(
        [
            (None, "auto", "eagle2"),
            (disk["eagle"], "eagle1", "eagle1"),
            (disk["hydra"], "auto", "hydra"),
            (NONE, "auto", "none"),
        ]
    ):
        if drafter is not None:
            ready = told(face, SwapDrafter(drafter, method))
            assert isinstance(ready, Ready), ready
        done, steps = answer(face, reply, k=20)
        assert (ready.method, done.method) == (shown, shown)
        assert any(step.nodes > step.drafted > 0 for step in steps) == (shown != "none")
        texts.append(done.token_ids)
    assert len(set(texts)) == 1
    for drafter, method, kind in ((disk["narrow"], "auto", "wrong_target"), (disk["eagle"], "medusa", "config")):
        failed = told(face, SwapDrafter(drafter, method))
        assert isinstance(failed, Failed)
        assert failed.kind == kind
    done, _ = answer(face, 9)
    assert done.token_ids == texts[0]  # the mistakes left everything as it was


def test_one_command_reports_the_tree(
    disk: dict[str, ModelSpec], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`specchat run -t TARGET -d HEADS --json`."""
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    arguments = ["run", "tell me", "-t", str(disk["target"].path), "-d", str(disk["eagle"].path), "--json", "--k", "20"]
    assert invoke([*arguments, "--max-tokens", "20", "--seed", "1", "--device", "cpu", "--quant", "fp32"]) == 0
    out = json.loads(capsys.readouterr().out)
    stats = out["stats"]
    assert (out["drafter"], out["method"]) == ("eagle", "eagle2")
    assert stats["nodes"] > stats["drafted"] > 0
    assert stats["tau"] >= 1.0
    assert len(stats["per_position"]) > 1
