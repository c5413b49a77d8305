"""Tables of contents of weight files, and files that are cut off or are something else."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path

import pytest

from engine.catalog import headers, needed
from engine.errors import EngineError
from tests.engine.catalog.fakes import CONFIG, WEIGHTS, gguf_bytes, safetensors_bytes

GGUF = gguf_bytes({"general.architecture": "llama", "llama.block_count": 2, "llama.list": [1, 2, 3]}, {"a": (4, 6), "b": (32,)}, words=5)


def corrupt(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(EngineError) as caught:
        (headers.gguf if path.suffix == ".gguf" else headers.safetensors)(path)
    assert caught.value.kind == "corrupt_weights"
    assert path.name in caught.value.message
    return caught.value.message


def test_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_bytes({"a": (3, 5), "b": (7,), "scalar": ()}))
    found = headers.safetensors(path)
    assert {name: shape.shape for name, shape in found.items()} == {"a": (3, 5), "b": (7,), "scalar": ()}
    assert found["scalar"].numel == 1


def test_the_library_reads_it_alike(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    from safetensors.numpy import save_file

    path = tmp_path / "m.safetensors"
    save_file({"x": numpy.zeros((2, 3), "float32"), "y": numpy.zeros(9, "int8")}, path)
    assert {n: s.shape for n, s in headers.safetensors(path).items()} == {"x": (2, 3), "y": (9,)}


@pytest.mark.parametrize("length", [0, 4, 8, 20, 200, -1])
def test_truncated_safetensors(tmp_path: Path, length: int) -> None:
    corrupt(tmp_path / "m.safetensors", WEIGHTS[:length])


@pytest.mark.parametrize(
    "data", [b"<html>not here</html>", struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 7) + b'{"a":1}', WEIGHTS + b"x", bytes(64)]
)
def test_no_safetensors(tmp_path: Path, data: bytes) -> None:
    corrupt(tmp_path / "m.safetensors", data)


def test_a_truncated_file_says_how_long_it_should_be(tmp_path: Path) -> None:
    assert f"{len(WEIGHTS) - 7} bytes instead of {len(WEIGHTS)}" in corrupt(tmp_path / "m.safetensors", WEIGHTS[:-7])
    assert f"{len(GGUF) - 7} bytes instead of" in corrupt(tmp_path / "m.gguf", GGUF[:-7])


def test_gguf(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(GGUF)
    found = headers.gguf(path)
    assert found.metadata["general.architecture"] == "llama"
    assert found.metadata["llama.list"] == [1, 2, 3]
    assert found.metadata["tokenizer.ggml.tokens"] is None
    assert found.array_lengths["tokenizer.ggml.tokens"] == 5
    assert {name: shape.shape for name, shape in found.tensors.items()} == {"a": (4, 6), "b": (32,)}


def test_the_gguf_library_reads_it_alike(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "m.gguf"
    path.write_bytes(GGUF)
    theirs = {t.name: tuple(int(n) for n in t.shape[::-1]) for t in gguf.GGUFReader(path).tensors}
    assert theirs == {name: shape.shape for name, shape in headers.gguf(path).tensors.items()}


def test_type_sizes_are_those_of_the_gguf_library() -> None:
    gguf = pytest.importorskip("gguf")
    for number, (block, values) in headers.GGUF_TYPES.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)] == (values, block)


@pytest.mark.parametrize("length", [0, 3, 4, 10, 30, 60, 100, 200, len(GGUF) - 100])
def test_truncated_gguf(tmp_path: Path, length: int) -> None:
    corrupt(tmp_path / "m.gguf", GGUF[:length])


def test_no_gguf(tmp_path: Path) -> None:
    corrupt(tmp_path / "m.gguf", b"<html>" * 20)
    corrupt(tmp_path / "m.gguf", b"GGUF" + struct.pack("<I", 99) + bytes(50))
    corrupt(tmp_path / "m.gguf", b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + b"\xff" * 100)


def test_a_large_vocabulary_takes_no_time(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes({"general.architecture": "llama"}, {"a": (4, 4)}, words=250_000))
    started = time.process_time()
    headers.gguf(path)
    assert time.process_time() - started < 0.5


def test_missing(tmp_path: Path) -> None:
    for read in (headers.gguf, headers.safetensors):
        with pytest.raises(EngineError) as caught:
            read(tmp_path / "gone")
        assert caught.value.kind == "missing_weights"


# --- which files a model needs


def test_choose() -> None:
    names = [
        "README.md",
        "config.json",
        "tokenizer.json",
        "tokenizer.model",
        "model.safetensors",
        "x/model.safetensors",
        "onnx/config.json",
    ]
    assert needed.choose(names, "o/m") == ["config.json", "tokenizer.json", "model.safetensors"]
    names.remove("tokenizer.json")
    assert needed.choose(names, "o/m") == ["config.json", "tokenizer.model", "model.safetensors"]
    assert needed.choose(["config.json", "a.bin", "b.safetensors"], "o/m", "heads") == ["config.json", "b.safetensors"]
    with pytest.raises(EngineError) as caught:
        needed.choose(["config.json", "q.gguf"], "o/m", "model", "p.gguf")
    assert "o/m/q.gguf" in caught.value.hint


def test_a_broken_index(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / needed.INDEX).write_text('{"weight_map": [')
    with pytest.raises(EngineError) as caught:
        needed.verify(tmp_path)
    assert caught.value.kind == "corrupt_weights"
