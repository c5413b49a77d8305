"""Names and shapes are read without reading a weight and without torch; files that are cut off or hold code are found."""

from __future__ import annotations

import pickle
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.catalog import pickles
from engine.drafters.heads import headers
from engine.errors import EngineError
from tests.engine.drafters.heads import writing
from tests.engine.drafters.heads.writing import HYDRA, LLAMA, MEDUSA


def kind(path: Path) -> str:
    with pytest.raises(EngineError) as caught:
        pickles.read(path)
    assert path.name in caught.value.message
    assert caught.value.hint
    return caught.value.kind


@pytest.mark.parametrize("file", ["hydra_lm_head.pt", "old.pt", "model.safetensors"])
def test_shapes_and_types(file: str, tmp_path: Path) -> None:
    tensors = writing.hydra_plus()
    folder = writing.write(tmp_path / "h", tensors, HYDRA, file)
    if file == "old.pt":
        torch.save(tensors, folder / file, _use_new_zipfile_serialization=False)
    found = headers.read(folder)
    assert found.shapes == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert {shape.dtype for shape in found.tensors.values()} == {"F16"}
    assert found.config == HYDRA
    assert [f.name for f in found.files] == [file]
    if file != "model.safetensors":
        places = [found.tensors[f"hydra_mlp.0.{j}.linear.weight"].place for j in (1, 3, 5, 7)]
        assert len(set(places)) == 2  # one tensor under three names


def test_all_kinds_of_numbers(tmp_path: Path) -> None:
    dtypes = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "I64": torch.int64, "BOOL": torch.bool, "U8": torch.uint8}
    torch.save({name: torch.zeros(3, 2).to(dtype) for name, dtype in dtypes.items()}, tmp_path / "a.bin")
    assert {name: shape.dtype for name, shape in pickles.read(tmp_path / "a.bin").items()} == {name: name for name in dtypes}


def test_views_parameters_and_other_values(tmp_path: Path) -> None:
    whole = torch.arange(24.0).view(4, 6)
    content = {"view": whole[1:3, ::2], "turned": whole.t(), "p": torch.nn.Parameter(whole.clone()), "empty": torch.zeros(0, 5), "step": 3}
    torch.save(content, tmp_path / "a.bin")
    shapes = {name: shape.shape for name, shape in pickles.read(tmp_path / "a.bin").items()}
    assert shapes == {"view": (2, 3), "turned": (6, 4), "p": (4, 6), "empty": (0, 5)}


def test_a_state_dict_with_metadata(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 5))
    torch.save(module.state_dict(), tmp_path / "a.bin")
    assert pickles.read(tmp_path / "a.bin").keys() == module.state_dict().keys()


def test_nothing_of_the_weights_is_read_nor_torch_imported(tmp_path: Path) -> None:
    folder = writing.write(tmp_path / "h", {"0.0.linear.weight": torch.zeros(4000, 4000)}, MEDUSA, "medusa_lm_head.pt")
    code = (
        "import sys, resource\nfrom pathlib import Path\nfrom engine.drafters.heads import check, headers\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\nheaders.read(Path(sys.argv[1]))\n"
        "grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "print(grown, [m for m in ('torch', 'numpy', 'safetensors', 'transformers') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    grown, _, modules = run.stdout.strip().partition(" ")
    assert int(grown) < 10_000  # kilobytes; the file has 64 MB
    assert modules == "[]"


class Runs:
    """Unpickling it would run a command."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("how", ["zip", "stream", "bare"])
def test_code_never_runs(how: str, tmp_path: Path) -> None:
    mark, file = tmp_path / "ran", tmp_path / "a.bin"
    content = {"0.0.linear.weight": torch.zeros(2, 2), "x": Runs(mark)}
    if how == "bare":
        file.write_bytes(pickle.dumps(Runs(mark)))
    else:
        torch.save(content, file, _use_new_zipfile_serialization=how == "zip")
    assert kind(file) == "unsafe_weights"
    assert not mark.exists()
    torch.load(file, weights_only=False) if how != "bare" else pickle.loads(file.read_bytes())
    assert mark.exists()  # it would have


@pytest.mark.parametrize("named", ["os.system", "builtins.eval", "torch.load", "torch._utils._rebuild_qtensor", "torch.hub.load"])
def test_nothing_else_may_be_named(named: str, tmp_path: Path) -> None:
    module, _, name = named.rpartition(".")
    pickled = b"\x80\x02c" + f"{module}\n{name}\n".encode() + b"."
    with zipfile.ZipFile(tmp_path / "a.bin", "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
    assert kind(tmp_path / "a.bin") == "unsafe_weights"


def test_every_cut_is_found(tmp_path: Path) -> None:
    """Wherever the file ends too early."""
    file = tmp_path / "a.bin"
    for new in (True, False):
        torch.save(writing.medusa(heads=2), file, _use_new_zipfile_serialization=new)
        whole = file.read_bytes()
        pickles.read(file)
        for end in (0, 1, 10, 100, len(whole) // 2, len(whole) - 5000, len(whole) - 1):
            file.write_bytes(whole[:end])
            assert kind(file) in ("corrupt_weights", "unsafe_weights"), end


def test_damaged_bytes_are_a_sentence(tmp_path: Path) -> None:
    """Thousands of single changes to the part that is unpickled: a sentence or a table, never anything else."""
    file = tmp_path / "a.bin"
    torch.save({"a": torch.zeros(2, 2), "b": torch.zeros(3)}, file, _use_new_zipfile_serialization=False)
    whole = bytearray(file.read_bytes())
    for at in range(0, len(whole) - 60):
        changed = whole.copy()
        changed[at] ^= 1 << (at % 8)
        file.write_bytes(changed)
        with suppress(EngineError):
            pickles.read(file)


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    for content in (b"", b"hello", pickle.dumps([1, 2]), pickle.dumps({"a": 1})):
        file.write_bytes(content)
        assert kind(file) == "corrupt_weights"
    torch.save([1, 2, 3], file)
    assert kind(file) == "corrupt_weights"
    torch.save({"epoch": 3}, file)
    assert kind(file) == "corrupt_weights"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/b.txt", "x")
    assert kind(file) == "corrupt_weights"
    assert kind(tmp_path / "gone.bin") == "missing_weights"


def test_config(tmp_path: Path) -> None:
    folder = writing.write(tmp_path / "h", writing.eagle(), None)
    assert headers.read(folder).config is None
    for text in ("{", "[]", "\x00"):
        (folder / "config.json").write_text(text)
        with pytest.raises(EngineError) as caught:
            headers.read(folder)
        assert caught.value.kind == "corrupt_weights"
        assert "config.json" in caught.value.message


def test_shards(tmp_path: Path) -> None:
    folder = writing.write(tmp_path / "h", {}, LLAMA, "x.bin")
    (folder / "x.bin").unlink()
    tensors = list(writing.eagle().items())
    for i, part in enumerate((tensors[:4], tensors[4:]), 1):
        torch.save(dict(part), folder / f"pytorch_model-0000{i}-of-00002.bin")
    assert headers.read(folder).shapes.keys() == dict(tensors).keys()
    (folder / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(EngineError) as caught:
        headers.read(folder)
    assert caught.value.kind == "missing_weights"
