"""Loading: schemes, fused matrices, norms, the cache, cancelling, memory."""

from __future__ import annotations

import errno
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.decoder import linear, load, packed
from engine.decoder.blueprint import draw
from engine.decoder.config import from_hf
from engine.decoder.linear import Packed
from engine.decoder.load import load_weights, resolve_scheme
from engine.decoder.source import open_source
from engine.decoder.target import LeanTarget
from engine.errors import EngineError
from tests.oracle import as_gguf, config_of, model_of, saved
from tests.tiny import tiny_config

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if "real" in request.keywords:  # the models are in the person's own home
        return tmp_path
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "cache" / "packed"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    config = config_of("qwen2")
    config.vocab_size = 90  # no whole number of tiles
    return as_gguf(model_of(config), tmp_path / "m.gguf", "qwen2", ("ffn_up", "token_embd"))


# --- schemes ----------------------------------------------------------------------------------------------------------


def test_auto_goes_by_what_the_cpu_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def can(own: bool, capability: str) -> None:
        monkeypatch.setattr(linear, "own_kernels", lambda: own)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)

    can(True, "AVX2")
    assert resolve_scheme("auto", "auto", CPU) == ("nf4", "int8", torch.bfloat16)
    can(False, "AVX512")
    assert resolve_scheme("auto", "auto", CPU) == ("bf16", "bf16", torch.bfloat16)
    can(False, "AVX2")
    assert resolve_scheme("auto", "auto", CPU) == ("fp32", "fp32", torch.float32)
    can(True, "AVX512")
    odd = from_hf(config_of("llama"))  # 96 columns do not divide into blocks of 64: our kernels pad, CUDA's cannot
    assert resolve_scheme("auto", "auto", CPU, odd)[0] == "int8"  # four bits cost a tiny model too much
    large = replace(odd, hidden_size=2000, intermediate_size=5000, n_layers=12)
    assert large.body_size > 200_000_000
    assert resolve_scheme("auto", "auto", CPU, large)[0] == "nf4"


@pytest.mark.parametrize(("capability", "activations"), [((7, 5), torch.float16), ((8, 9), torch.bfloat16), ((12, 0), torch.bfloat16)])
def test_auto_on_cuda(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], activations: torch.dtype) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    scheme, head, dtype = resolve_scheme("auto", "auto", torch.device("cuda"))
    assert (scheme, dtype) == ("nf4", activations)
    assert head == ("fp16" if activations == torch.float16 else "bf16")


@pytest.mark.parametrize(("capability", "activations"), [((7, 5), torch.float32), ((8, 9), torch.bfloat16)])
def test_gemma_on_cuda(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], activations: torch.dtype) -> None:
    """Its hidden states leave the range of fp16, which is what older cards have."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    gemma = replace(tiny_config(), family="gemma3_text", hidden_size=64, intermediate_size=128)
    assert resolve_scheme("auto", "auto", torch.device("cuda"), gemma)[2] == activations


def test_wishes() -> None:
    assert resolve_scheme("fp64", "auto", CPU) == ("fp64", "fp64", torch.float64)
    assert resolve_scheme("nf4", "nf4", CPU) == ("nf4", "nf4", torch.bfloat16)
    assert resolve_scheme("int8", "bf16", CPU) == ("int8", "bf16", torch.bfloat16)
    assert resolve_scheme("nf4", "fp32", CPU)[1] == "bf16"  # a dense head has the type of the activations, and says so
    with pytest.raises(EngineError) as error:
        resolve_scheme("q4", "auto", CPU)
    assert error.value.kind == "config"


# --- matrices and norms -----------------------------------------------------------------------------------------------


def test_pieces_are_fused_and_norms_have_their_offset(tmp_path: Path) -> None:
    model, folder = saved("gemma3", tmp_path / "m")
    weights = load_weights(folder, quant="fp32")
    layer, theirs = weights.layers[1], model.model.layers[1]
    x = torch.randn(3, 64)
    qkv = torch.cat([theirs.self_attn.q_proj(x), theirs.self_attn.k_proj(x), theirs.self_attn.v_proj(x)], dim=1)
    assert torch.allclose(layer.qkv(x), qkv, atol=1e-5)
    assert torch.allclose(layer.gate_up(x), torch.cat([theirs.mlp.gate_proj(x), theirs.mlp.up_proj(x)], dim=1), atol=1e-5)
    assert torch.equal(layer.attn_norm, 1 + theirs.input_layernorm.weight)
    assert layer.post_attn_norm is not None
    assert torch.equal(layer.post_attn_norm, 1 + theirs.post_attention_layernorm.weight)
    assert torch.equal(layer.mlp_norm, 1 + theirs.pre_feedforward_layernorm.weight)
    assert layer.k_norm is not None
    assert torch.equal(layer.k_norm, 1 + theirs.self_attn.k_norm.weight)
    assert torch.equal(weights.norm, 1 + model.model.norm.weight)
    assert torch.allclose(weights.head(x), x @ model.model.embed_tokens.weight.T, atol=1e-5)


def test_what_lies_ready_in_the_file_is_not_copied(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, folder = saved("qwen3", tmp_path / "m")
    layouts: list[packed.Layout] = []
    original = packed.MemorySink.__init__

    def spy(self: packed.MemorySink, layout: packed.Layout) -> None:
        layouts.append(layout)
        original(self, layout)

    monkeypatch.setattr(packed.MemorySink, "__init__", spy)
    weights = load_weights(folder, quant="fp32")
    assert torch.equal(weights.embed, model.model.embed_tokens.weight)
    copied = set(layouts[0].slots)
    assert {"layers.0.qkv.weight", "layers.0.gate_up.weight"} < copied
    assert not copied & {"embed.weight", "head.weight", "layers.0.o.weight", "layers.0.down.weight"}
    assert not home.exists()


def test_float64(tmp_path: Path) -> None:
    model, folder = saved("llama-biases", tmp_path / "m")
    weights = load_weights(folder, quant="fp64")
    target = LeanTarget(weights, 64)
    ids = list(range(5, 35))
    target.prefill(ids[:-1])
    with torch.inference_mode():
        reference = model.double()(torch.tensor([ids])).logits[0, -1]
    assert (
        target.verify(torch.tensor(ids[-1:]), ())[0] - reference
    ).abs().max() < 1e-5  # transformers' norms and rotary are float32 even then


@pytest.mark.parametrize("scheme", ["int8", "nf4"])
def test_row_blocks_give_what_packing_at_once_gives(tmp_path: Path, gguf: Path, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that cut through the parts of a fused matrix, and a last block that is not whole."""
    monkeypatch.setattr(load, "BLOCK", 64 * 64)
    made: dict[str, Packed] = {}
    original = linear.build

    def spy(piece: Packed, *rest: Any) -> Any:
        made[f"{len(made)}"] = piece
        return original(piece, *rest)

    monkeypatch.setattr(linear, "build", spy)
    load_weights(gguf, quant=scheme, head=scheme)
    source = open_source(gguf)
    config = from_hf(source.config)
    blueprint = draw(config, source, scheme, scheme, CPU, torch.bfloat16)
    assert blueprint.head is not None
    for piece, matrix in zip(made.values(), [*blueprint.matrices, blueprint.head], strict=True):
        whole = linear.pack(torch.cat([source.read(part) for part in matrix.parts]), matrix.layout, torch.bfloat16)
        assert piece.layout == whole.layout
        assert piece.shape == whole.shape
        assert piece.tensors.keys() == whole.tensors.keys()
        for name, tensor in whole.tensors.items():
            assert torch.equal(piece.tensors[name], tensor), (matrix.name, name)
        assert [(f"{matrix.name}.{k}", t.dtype, tuple(t.shape)) for k, t in whole.tensors.items()] == [
            s for s in matrix.specs(torch.bfloat16) if not s[0].endswith("bias")
        ]


# --- cache ------------------------------------------------------------------------------------------------------------


def _logits(path: Path, **options: Any) -> torch.Tensor:
    target = LeanTarget(load_weights(path, **options), 64)
    target.prefill([5, 6, 7, 8])
    return target.verify(torch.tensor([9, 10]), (0,))


@pytest.mark.parametrize("quant", ["int8", "nf4", "bf16"])
def test_cached_in_memory_and_read_again_are_the_same_bits(gguf: Path, home: Path, quant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without = _logits(gguf, quant=quant, use_cache=False)
    assert not home.exists()
    first = _logits(gguf, quant=quant)
    assert len(list(home.glob("*.safetensors"))) == 1
    monkeypatch.setattr(load.linear, "pack", None)  # nothing is packed any more
    second = _logits(gguf, quant=quant)
    assert torch.equal(first, second)
    assert torch.equal(first, without)


def test_a_damaged_cache_is_built_again(gguf: Path, home: Path) -> None:
    first = _logits(gguf, quant="int8")
    (path,) = home.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-10])
    assert torch.equal(_logits(gguf, quant="int8"), first)
    assert path.exists()


def test_schemes_do_not_share_a_cache(gguf: Path, home: Path) -> None:
    for quant, head in (("int8", "int8"), ("int8", "bf16"), ("bf16", "bf16")):
        load_weights(gguf, quant=quant, head=head)
    assert len(list(home.glob("*.safetensors"))) == 3


def test_a_full_disk_costs_a_note_only(gguf: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _logits(gguf, quant="int8", use_cache=False)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 10, 0))
    notes: list[str] = []
    assert torch.equal(_logits(gguf, quant="int8", note=notes.append), first)
    assert len(notes) == 1
    assert not list(home.iterdir())


def test_a_disk_that_fills_up_while_writing(gguf: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = packed.FileSink.put

    def fill(self: packed.FileSink, name: str, tensor: torch.Tensor, row: int = 0) -> None:
        if name.startswith("layers.2"):
            raise OSError(errno.ENOSPC, "No space left on device")
        put(self, name, tensor, row)

    monkeypatch.setattr(packed.FileSink, "put", fill)
    notes: list[str] = []
    load_weights(gguf, quant="int8", note=notes.append)
    assert "No space left" in notes[0]
    assert not list(home.iterdir())


def test_an_unwritable_cache_folder(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "file"))
    notes: list[str] = []
    load_weights(gguf, quant="int8", note=notes.append)
    assert len(notes) == 1


def test_cancelling_leaves_nothing(gguf: Path, home: Path) -> None:
    seen: list[int] = []

    def progress(stage: str, done: int, total: int) -> None:
        seen.append(done)
        assert 0 < done <= total

    with pytest.raises(EngineError) as error:
        load_weights(gguf, quant="int8", progress=progress, cancelled=lambda: len(seen) >= 3)
    assert error.value.kind == "cancelled"
    assert len(seen) == 3
    assert not list(home.iterdir())
    load_weights(gguf, quant="int8", progress=progress)
    assert seen[3:] == sorted(seen[3:])


# --- real models ------------------------------------------------------------------------------------------------------

_CHILD = """
import sys, threading, time
from pathlib import Path
import torch, transformers
from engine.decoder import linear
from engine.decoder.load import load_weights
import engine.decoder.target
linear.own_kernels()

def anonymous():
    return int(next(l for l in open("/proc/self/status") if l.startswith("RssAnon")).split()[1]) * 1024

peak, stop = 0, False
def watch():
    global peak
    while not stop:
        peak = max(peak, anonymous())
        time.sleep(0.002)
thread = threading.Thread(target=watch)
before = anonymous()
thread.start()
begun = time.perf_counter()
weights = load_weights(Path(sys.argv[1]), use_cache=sys.argv[2] == "cache")
seconds = time.perf_counter() - begun
stop = True
thread.join()
print(seconds, peak - before, weights.nbytes)
"""


@pytest.mark.real
@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_memory_and_time_of_real_loads(name: str) -> None:
    """Whether in memory or through the cache, anonymous memory peaks at 1.5 times the packed size at most; a second load takes 5 s."""
    import subprocess
    import sys

    from engine.catalog import catalog, hub

    path = hub.locate(catalog.load().target(name))
    if path is None:
        pytest.skip(f"specchat pull {name} first")
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")

    def child(kind: str) -> tuple[float, float, float]:
        done = subprocess.run([sys.executable, "-c", _CHILD, str(path), kind], capture_output=True, text=True, check=True)
        seconds, peak, size = map(float, done.stdout.split()[-3:])
        return seconds, peak, size

    for kind in ("memory", "cache"):
        _, peak, size = child(kind)
        assert peak <= 1.5 * size, kind
    seconds, peak, size = child("cache")
    assert peak <= 0.5 * size  # mapped
    assert seconds <= 5.0
