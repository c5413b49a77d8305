"""What is read back is what was written; half files are no files; the disk is looked at first."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from engine.errors import EngineError
from engine.training import shards
from engine.training.shards import Store, Text
from tests.engine.training.worlds import some_text

TEXTS = [some_text(number, 20 + number, 5 + number % 3, 16, 64) for number in (4, 0, 9, 2)]


@pytest.mark.parametrize("kind", ["bf16", "int8"])
def test_there_and_back(tmp_path: Path, kind: str) -> None:
    shards.write(tmp_path, TEXTS[:3], kind)
    shards.write(tmp_path, TEXTS[3:], kind)
    store = Store(tmp_path)
    assert store.numbers == [0, 2, 4, 9]
    assert 9 in store
    assert 1 not in store
    for text in TEXTS:
        found = store.read(text.number)
        assert torch.equal(found.ids, text.ids)
        assert found.start == text.start
        assert (store.replied(text.number), store.length(text.number)) == (text.replied, len(text.ids))
        assert torch.equal(found.top_ids, text.top_ids)
        assert torch.allclose(found.top_chances, text.top_chances, atol=1e-3)
        assert torch.allclose(found.hidden, text.hidden, atol=0.02, rtol=0.01)
        assert found.hidden.dtype == torch.float32


def test_a_damaged_shard_is_taken_away(tmp_path: Path) -> None:
    good, bad = shards.write(tmp_path, TEXTS[:2], "bf16"), shards.write(tmp_path, TEXTS[2:], "bf16")
    bad.write_bytes(bad.read_bytes()[:40])
    store = Store(tmp_path)
    assert store.numbers == [0, 4]
    assert good.exists()
    assert not bad.exists()


def test_nothing_but_whole_files_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(EngineError) as failed:
        shards.write(tmp_path, TEXTS, "bf16")
    assert failed.value.kind == "disk_full"
    assert "--resume" in failed.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["bf16", "int8"])
def test_the_estimate_is_near(tmp_path: Path, kind: str) -> None:
    texts = [some_text(number, 140, 40, 256, 64) for number in range(20)]
    written = shards.write(tmp_path, texts, kind).stat().st_size
    assert shards.size(20 * 100, 256, kind) == pytest.approx(written, rel=0.1)


def test_too_small_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 0, shards.RESERVE + 10**6))
    assert shards.check_space(tmp_path, 100, 256, "bf16") == shards.size(100, 256, "bf16")
    with pytest.raises(EngineError) as failed:
        shards.check_space(tmp_path, 10**6, 256, "bf16")
    assert failed.value.kind == "disk_full"
    fits = int(failed.value.numbers["fits"])
    assert f"{fits:,} fit" in failed.value.hint
    assert shards.size(fits, 256, "bf16") <= 10**6
    assert "int8" in failed.value.hint


def test_the_first_of_two_copies_counts(tmp_path: Path) -> None:
    """A run that was killed after writing a shard but before it knew may answer a prompt twice."""
    shards.write(tmp_path, TEXTS[:2], "bf16")
    again = Text(0, TEXTS[1].ids, TEXTS[1].start, TEXTS[1].hidden + 1, TEXTS[1].top_ids, TEXTS[1].top_chances)
    shards.write(tmp_path, [again], "bf16")
    assert len(Store(tmp_path)) == 2
