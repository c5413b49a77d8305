"""From an entry to a drafter: what fits, what `auto` takes, what is refused and in which words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.bridge import calibration
from engine.catalog import measured
from engine.catalog.specs import AUTO, NGRAM, NONE, ModelSpec
from engine.decoder.tokenizer import load_tokenizer
from engine.drafters import registry
from engine.drafters.bridged import NO_TEMPLATE
from engine.drafters.cross import Cross
from engine.drafters.model import ModelDrafter
from engine.drafters.ngram import Ngram
from engine.drafters.registry import Beside, build, choose, describe
from engine.drafters.stacked import Stacked
from engine.errors import EngineError
from engine.protocol import LoadOptions
from tests.tiny_disk import spec_of, tiny_model

CPU = torch.device("cpu")
PLAIN = LoadOptions(device="cpu", quant="fp32")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    at = tmp_path_factory.mktemp("models")
    return {
        "target": tiny_model(at / "target", 1),
        "small": tiny_model(at / "small", 2, num_hidden_layers=1),
        "smaller": tiny_model(at / "smaller", 3, num_hidden_layers=1),
        "stranger": tiny_model(at / "stranger", 4, shift=7),
    }


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "home" / "config").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def beside(models: dict[str, Path]) -> Beside:
    tokenizer = load_tokenizer(models["target"])
    return Beside(spec_of(models["target"], params=1.0), tokenizer, 260, 500, CPU, "fp32")


def entries(home: Path, **places: tuple[Path, float]) -> None:
    """The person's own models.toml with these drafters."""
    text = "".join(
        f'[drafter.{name}]\nkind = "model"\npath = "{path}"\nparams_b = {size}\nfor = ["target"]\n' for name, (path, size) in places.items()
    )
    (home / "home" / "config" / "models.toml").write_text(text)


def test_the_simple_kinds(beside: Beside) -> None:
    assert build(NONE, "auto", beside, CPU, PLAIN).drafter is None
    built = build(ModelSpec("look", role="drafter", kind="ngram", min_match=3, max_match=5), "ngram", beside, CPU, PLAIN)
    assert isinstance(built.drafter, Ngram)
    assert list(built.drafter._lengths) == [5, 4, 3]
    assert describe(built.drafter) == ("look", "ngram")
    assert describe(None) == ("none", "none")


def test_a_model_of_the_same_family(beside: Beside, models: dict[str, Path], home: Path) -> None:
    seen: list[str] = []
    built = build(spec_of(models["small"], "drafter"), "model", beside, CPU, PLAIN, lambda stage, done, total: seen.append(stage))
    assert isinstance(built.drafter, ModelDrafter)
    assert built.quant == "fp32"
    assert describe(built.drafter) == ("small", "model")
    assert built.drafter._runner.context == 500  # no more than the target's
    other = build(spec_of(models["small"], "drafter"), "auto", beside, CPU, LoadOptions(device="cpu", draft_quant="bf16"))
    assert other.quant == "bf16"
    assert seen


def test_what_does_not_go_together_is_said(beside: Beside, models: dict[str, Path], home: Path) -> None:
    cases = [
        (spec_of(models["stranger"], "drafter"), "model", "vocabulary", "stranger has another vocabulary than target: id"),
        (spec_of(models["small"], "drafter"), "ngram", "config", "The method ngram does not go with the drafter small"),
        (NGRAM, "model", "config", "The method model does not go with the drafter ngram"),
        (ModelSpec("gone", role="drafter", repo="somebody/gone"), "auto", "missing_weights", "gone is not on this machine"),
        (ModelSpec("gone", role="drafter", path=home / "gone"), "auto", "missing_weights", str(home / "gone")),
    ]
    for spec, method, kind, message in cases:
        with pytest.raises(EngineError) as caught:
            build(spec, method, beside, CPU, PLAIN)
        assert caught.value.kind == kind
        assert message in caught.value.message
        assert caught.value.hint
    assert "pull gone" not in caught.value.hint  # a folder cannot be pulled


@pytest.mark.parametrize("method", ["auto", "slem", "tli", "pf", "slrs"])
def test_a_model_with_another_vocabulary_drafts_through_the_bridge(
    beside: Beside, models: dict[str, Path], home: Path, method: str
) -> None:
    built = build(spec_of(models["stranger"], "drafter", params=0.1), method, beside, CPU, PLAIN)
    assert isinstance(built.drafter, Cross)
    assert describe(built.drafter) == ("stranger", "slem" if method == "auto" else method)
    assert built.drafter.side.runner.context == 500
    warm = build(spec_of(models["stranger"], "drafter"), method, replace(beside, temperature=0.7), CPU, PLAIN)
    assert describe(warm.drafter) == ("stranger", "pf" if method == "auto" else method)
    assert build(spec_of(models["small"], "drafter"), method, beside, CPU, PLAIN).drafter.method == (  # type: ignore[union-attr]
        "model" if method == "auto" else method
    )


def test_a_drafter_without_a_chat_template_says_what_that_means_for_a_drafter(beside: Beside, tmp_path: Path, home: Path) -> None:
    bare = tiny_model(tmp_path / "bare", 4, shift=7)
    settings = json.loads((bare / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (bare / "tokenizer_config.json").write_text(json.dumps(settings))
    (bare / "chat_template.jinja").unlink(missing_ok=True)
    notes = build(spec_of(bare, "drafter", params=0.1), "auto", beside, CPU, PLAIN).notes
    assert [note for note in notes if "template" in note] == [f"bare {NO_TEMPLATE}"]


def test_a_pair_that_is_unwise_is_allowed_and_says_what_to_expect(beside: Beside, models: dict[str, Path], home: Path) -> None:
    large = spec_of(models["stranger"], "drafter", params=0.9)
    notes = build(large, "auto", replace(beside, context=2500), CPU, PLAIN).notes
    assert any("90% of the size of target" in note for note in notes)
    assert any("2,048 tokens at most" in note for note in notes)
    assert not any("size" in note for note in build(replace(large, params=0.1), "auto", beside, CPU, PLAIN).notes)


@pytest.mark.parametrize(
    ("method", "says"), [("auto", "begin as target would go on in chat (30%)"), ("tli", "are tokens of target, too, in code (20%)")]
)
def test_tokenizers_with_little_in_common_are_told_of(
    beside: Beside, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, method: str, says: str
) -> None:
    """By first pieces, or, for the method that drafts whole tokens, by what both have."""
    shares = {"chat": (0.9, 0.3), "code": (0.2, 0.9), "multilingual": (0.9, 0.9)}
    monkeypatch.setattr(calibration, "text", lambda part: part)
    monkeypatch.setattr(calibration, "shares", lambda target, drafter, maps, part: shares[part])
    found = [
        note for note in build(spec_of(models["stranger"], "drafter"), method, beside, CPU, PLAIN).notes if note.startswith("Few tokens")
    ]
    assert len(found) == 1
    assert f"Few tokens of stranger {says}: " in found[0]


def test_a_pair_that_is_not_sound_is_refused_with_the_reason(beside: Beside, models: dict[str, Path], home: Path) -> None:
    lower = tiny_model(home / "lower", 5, shift=3)
    file = lower / "tokenizer.json"
    whole = json.loads(file.read_text())
    file.write_text(json.dumps(whole | {"normalizer": {"type": "Lowercase"}}))
    with pytest.raises(EngineError) as caught:
        build(spec_of(lower, "drafter"), "auto", beside, CPU, PLAIN)
    assert caught.value.kind == "vocabulary"
    assert "lower cannot be drafter beside another tokenizer: its tokenizer rewrites texts" in caught.value.message
    entries(home, lower=(lower, 0.1))
    assert choose(beside)[0].name == "ngram"


# --- auto ---------------------------------------------------------------------------------------------------------------


def test_auto_takes_what_is_on_disk_with_the_look_up_in_front(beside: Beside, models: dict[str, Path], home: Path) -> None:
    entries(home, small=(models["small"], 0.2), stranger=(models["stranger"], 0.1), big=(models["target"], 0.9), gone=(home / "gone", 0.1))
    built = build(AUTO, "auto", beside, CPU, PLAIN)
    assert isinstance(built.drafter, Stacked)
    assert describe(built.drafter) == ("ngram+small", "model")
    assert list(built.drafter.parts[0]._lengths)[-1] == registry.LONG  # type: ignore[attr-defined]
    assert built.quant == "fp32"


def test_auto_takes_a_stranger_where_no_relative_is_there(beside: Beside, models: dict[str, Path], home: Path) -> None:
    entries(home, stranger=(models["stranger"], 0.1))
    built = build(AUTO, "auto", beside, CPU, PLAIN)
    assert describe(built.drafter) == ("ngram+stranger", "slem")
    assert describe(build(AUTO, "tli", beside, CPU, PLAIN).drafter) == ("ngram+stranger", "tli")
    measured.remember("target", "ngram", "fp32", "cpu", 1.2, 500)  # look-up alone: a model behind it is hoped to add to that
    assert choose(beside)[0].name == "stranger"
    entries(home, stranger=(models["stranger"], 0.3))  # too large to pay for the detour
    assert choose(beside)[0].name == "ngram"
    measured.remember("target", "ngram+stranger", "fp32", "cpu", 1.5, 500)
    assert choose(beside)[0].name == "stranger"
    entries(home, stranger=(models["stranger"], 0.3), small=(models["small"], 0.2))
    assert choose(beside)[0].name == "stranger"  # what was measured counts more than what is hoped for


def test_auto_without_anything_is_the_look_up(beside: Beside, home: Path) -> None:
    built = build(AUTO, "auto", beside, CPU, PLAIN)
    assert describe(built.drafter) == ("ngram", "ngram")
    assert built.notes == ()


def test_auto_believes_what_was_measured_here(beside: Beside, models: dict[str, Path], home: Path) -> None:
    entries(home, small=(models["small"], 0.2), smaller=(models["smaller"], 0.1))
    assert choose(beside)[0].name == "smaller"  # the estimate
    measured.remember("target", "ngram+small", "fp32", "cpu", 1.8, 500)
    assert choose(beside)[0].name == "small"
    measured.remember("target", "ngram", "fp32", "cpu", 2.5, 500)
    assert choose(beside)[0].name == "ngram"
    measured.remember("target", "smaller", "fp32", "cpu", 2.6, 500)
    assert choose(beside)[0].name == "smaller"
    measured.remember("target", "smaller", "nf4", "cpu", 0.6, 500)  # another machine, so to say
    assert choose(beside)[0].name == "smaller"


def test_auto_never_fails(beside: Beside, models: dict[str, Path], home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken catalog, a broken folder or no memory: there is always the look-up, and the person hears why."""
    broken = home / "broken"
    broken.mkdir()
    for file in models["small"].iterdir():
        (broken / file.name).write_bytes(b"{" if file.name.startswith("tokenizer") else file.read_bytes())
    entries(home, broken=(broken, 0.1))
    assert describe(build(AUTO, "auto", beside, CPU, PLAIN).drafter) == ("ngram", "ngram")

    for file in models["small"].iterdir():
        (broken / file.name).write_bytes(b"\xff" * 3000 if file.suffix == ".safetensors" else file.read_bytes())
    built = build(AUTO, "auto", beside, CPU, PLAIN)
    assert describe(built.drafter) == ("ngram", "ngram")
    assert "broken" in built.notes[0]

    entries(home, small=(models["small"], 0.1))
    monkeypatch.setattr(registry, "load_weights", _no_memory)
    with pytest.raises(MemoryError):  # the thread frees and reports this one
        build(AUTO, "auto", beside, CPU, PLAIN)

    (home / "home" / "config" / "models.toml").write_text("[drafter.x\n")
    built = build(AUTO, "auto", beside, CPU, PLAIN)
    assert describe(built.drafter) == ("ngram", "ngram")
    assert "models.toml" in built.notes[0]


def _no_memory(*args: object, **more: object) -> None:
    raise MemoryError


def test_a_stop_while_auto_loads_is_a_stop(beside: Beside, models: dict[str, Path], home: Path) -> None:
    entries(home, small=(models["small"], 0.1))
    with pytest.raises(EngineError) as caught:
        build(AUTO, "auto", beside, CPU, PLAIN, None, lambda: True)
    assert caught.value.kind == "cancelled"
