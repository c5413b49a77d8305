"""Published draft heads in the catalog: bound to targets that exist, blocked beside all others, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.catalog import stored
from engine.catalog.bindings import blocked, require
from engine.catalog.catalog import Catalog, builtin
from engine.catalog.specs import NGRAM, ModelSpec
from engine.errors import EngineError
from tests.engine.catalog.fakes import safetensors_bytes


@pytest.fixture(scope="module")
def known() -> Catalog:
    return builtin()


def heads(known: Catalog) -> list[ModelSpec]:
    return [spec for spec in known.drafters.values() if spec.kind == "heads"]


def test_every_published_set_is_there_once_and_bound(known: Catalog) -> None:
    found = heads(known)
    assert len({spec.repo for spec in found}) == len(found)
    owners = [str(spec.repo).partition("/")[0] for spec in found]
    assert {owner: owners.count(owner) for owner in owners} == {"amd": 7, "ankner": 3, "FasterDecoding": 3, "yuhuili": 16}
    for spec in found:
        assert spec.licence
        assert len(spec.bound_to) == 1
        assert known.targets[spec.bound_to[0]].repo
        assert spec in known.drafters_for(known.targets[spec.bound_to[0]])


def test_sizes_are_smaller_than_the_targets(known: Catalog) -> None:
    sized = [spec for spec in heads(known) if spec.size]
    assert len(sized) > 20
    for spec in sized:
        assert 0 < spec.size < 0.35 * known.targets[spec.bound_to[0]].size


def test_every_pair_of_the_catalog(known: Catalog) -> None:
    for spec in heads(known):
        for target in known.targets.values():
            reason = blocked(spec, target)
            assert (reason is None) == (target.name in spec.bound_to)
            if reason is not None:
                assert spec.name in reason
                assert spec.bound_to[0] in reason
                assert target.name in reason


def test_other_targets(known: Catalog, tmp_path: Path) -> None:
    gumiho = known.drafter("gumiho-vicuna-7b")
    assert blocked(gumiho, ModelSpec("someone/a-fine-tune", repo="someone/a-fine-tune"))
    assert blocked(gumiho, ModelSpec("mine", path=tmp_path)) is None  # a copy of Vicuna, perhaps: sizes will tell
    assert blocked(gumiho, known.target("lmsys/vicuna-7b-v1.3")) is None
    assert blocked(NGRAM, known.target("qwen3-8b")) is None
    assert blocked(ModelSpec("x/eagle", "drafter", "heads", repo="x/eagle"), known.target("qwen3-8b")) is None  # bound to nothing


def test_the_refusal_says_what_to_do(known: Catalog) -> None:
    with pytest.raises(EngineError) as caught:
        require(known.drafter("hydra-vicuna-13b"), known.target("vicuna-7b-v1.3"))
    assert caught.value.kind == "wrong_target"
    assert "vicuna-13b-v1.3" in caught.value.message
    assert "vicuna-13b-v1.3" in caught.value.hint
    require(known.drafter("hydra-vicuna-13b"), known.target("vicuna-13b-v1.3"))


def test_heads_by_their_hub_id(known: Catalog) -> None:
    assert known.drafter("amd/gumiho-vicuna-7b").name == "gumiho-vicuna-7b"
    assert known.drafter("ankner/hydra-vicuna-7b-v1.3").kind == "heads"


def test_a_folder_of_heads_is_known_by_its_files(known: Catalog, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"")
    assert known.drafter(str(tmp_path)).kind == "heads"
    (tmp_path / "medusa_lm_head.pt").unlink()
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({"fc.weight": (4, 8)}))
    assert known.drafter(str(tmp_path)).kind == "heads"
    (tmp_path / "tokenizer.json").write_text("{}")
    assert known.drafter(str(tmp_path)).kind == "model"


def test_a_download_that_turned_out_to_be_heads(known: Catalog, tmp_path: Path) -> None:
    """A hub id is taken as a target as long as its files are not here; the load looks again."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"")
    assert known.target("some/heads").kind == "model"
    assert known.heads("some/heads") is known.heads("qwen3-8b") is known.heads("ngram") is known.heads("nothing") is None
    with pytest.raises(EngineError, match="x are draft heads, not a model to chat with") as caught:
        stored.target(ModelSpec("x", path=tmp_path))
    assert caught.value.kind == "wrong_target"
    (tmp_path / "medusa_lm_head.pt").unlink()
    assert stored.target(ModelSpec("x", path=tmp_path)) == tmp_path


def test_vicuna_has_its_own_words(known: Catalog) -> None:
    """As FastChat writes them: no space behind the end of a reply."""
    from jinja2 import Environment

    for size in ("7b", "13b", "33b"):
        template = Environment().from_string(known.target(f"vicuna-{size}-v1.3").template or "")
        turns = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "How?"}]
        said = template.render(bos_token="<s>", eos_token="</s>", add_generation_prompt=True, messages=turns)
        assert said.startswith("<s>A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, ")
        assert said.endswith("polite answers to the user's questions. USER: Hello! ASSISTANT: Hi.</s>USER: How? ASSISTANT:")
        system = [{"role": "system", "content": "Be brief."}, turns[0]]
        assert (
            template.render(bos_token="<s>", eos_token="</s>", add_generation_prompt=True, messages=system)
            == "<s>Be brief. USER: Hello! ASSISTANT:"
        )
