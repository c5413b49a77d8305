"""The packed cache: layout, writing in blocks, mapping, and every way in which a cache can be unfit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from engine.decoder import packed
from engine.decoder.packed import FileSink, MemorySink, arrange, file_of, find, key_of

SPECS = [
    ("a", torch.bfloat16, (3, 5)),
    ("b", torch.int8, (7,)),
    ("c.scale", torch.float32, (4, 2, 3)),
    ("d", torch.uint8, (64,)),
    ("e", torch.float64, (1, 1)),
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    return {name: (torch.randn(shape, generator=made) * 40).to(dtype) for name, dtype, shape in SPECS}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


def _written(source: Path, tensors: dict[str, torch.Tensor]) -> tuple[packed.Layout, dict[str, Any], torch.Tensor]:
    layout = arrange(SPECS)
    key = key_of((source,), scheme="nf4", head="int8")
    sink = FileSink(layout, key, source)
    for name, tensor in tensors.items():
        for row in range(tensor.shape[0]):  # row by row, the last first
            sink.put(name, tensor[tensor.shape[0] - 1 - row :][:1], tensor.shape[0] - 1 - row)
    return layout, key, sink.finish()


def test_what_is_written_in_blocks_comes_back(source: Path, tensors: dict[str, torch.Tensor]) -> None:
    layout, key, data = _written(source, tensors)
    found = find(layout, key, source)
    assert found is not None
    memory = MemorySink(layout)
    for name, tensor in tensors.items():
        memory.put(name, tensor[:1])
        memory.put(name, tensor[1:], 1)
    for views in (layout.views(data), layout.views(found), layout.views(memory.finish())):
        for name, tensor in tensors.items():
            assert torch.equal(views[name], tensor)
            assert views[name].data_ptr() % 64 == views["a"].data_ptr() % 64


def test_the_file_is_plain_safetensors(source: Path, tensors: dict[str, torch.Tensor], home: Path) -> None:
    _, key, _ = _written(source, tensors)
    with safe_open(str(file_of(home / "cache" / "packed", key, source)), framework="pt") as file:
        for name, tensor in tensors.items():
            assert torch.equal(file.get_tensor(name), tensor)


def test_the_note_names_the_source(source: Path, tensors: dict[str, torch.Tensor], home: Path) -> None:
    _written(source, tensors)
    (note,) = (home / "cache" / "packed").glob("*.json")
    assert json.loads(note.read_text())["source"] == str(source)
    assert sorted(f.suffix for f in note.parent.iterdir()) == [".json", ".safetensors"]


@pytest.mark.parametrize("change", ["size", "mtime", "scheme", "short", "header", "note", "half"])
def test_what_does_not_match_is_not_used(source: Path, tensors: dict[str, torch.Tensor], change: str, home: Path) -> None:
    layout, key, _ = _written(source, tensors)
    path = file_of(home / "cache" / "packed", key, source)
    if change == "size":
        source.write_bytes(b"other weights")
    elif change == "mtime":
        os.utime(source, ns=(1, 1))
    elif change == "short":
        os.truncate(path, path.stat().st_size - 1)
    elif change == "header":
        blob = bytearray(path.read_bytes())
        blob[20] ^= 1
        path.write_bytes(bytes(blob))
    elif change == "note":
        path.with_suffix(".json").write_text("{")
    elif change == "half":
        path.with_suffix(".json").unlink()
    now = key_of((source,), scheme="int8" if change == "scheme" else "nf4", head="int8")
    assert find(layout, now, source) is None
    if change in ("short", "header", "note"):
        assert not path.exists()  # damaged: removed, to be built anew


def test_stale_files_go_when_new_ones_come(source: Path, tensors: dict[str, torch.Tensor], home: Path) -> None:
    _written(source, tensors)
    source.write_bytes(b"a newer download")
    layout, key, _ = _written(source, tensors)
    assert len(list((home / "cache" / "packed").iterdir())) == 2
    assert find(layout, key, source) is not None


def test_an_aborted_write_leaves_nothing(source: Path, home: Path) -> None:
    layout = arrange(SPECS)
    sink = FileSink(layout, key_of((source,), scheme="nf4", head="int8"), source)
    sink.put("b", torch.zeros(7, dtype=torch.int8))
    sink.abort()
    assert not list((home / "cache" / "packed").iterdir())


def test_mapping_takes_no_memory(source: Path, home: Path) -> None:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs /proc")

    def anonymous() -> int:
        return int(next(line for line in status.read_text().splitlines() if line.startswith("RssAnon")).split()[1])

    layout = arrange([("big", torch.uint8, (1024, 65536))])
    key = key_of((source,), scheme="nf4", head="int8")
    sink = FileSink(layout, key, source)
    row = torch.ones(1, 65536, dtype=torch.uint8)
    before = anonymous()
    for i in range(1024):
        sink.put("big", row, i)
    views = layout.views(sink.finish())
    assert int(views["big"].sum(dtype=torch.int64)) == 1024 * 65536
    assert anonymous() - before < 16 << 10  # kB; the file has 64 MB
