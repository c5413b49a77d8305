"""From a model on disk to packed weights: quantized on the way in, tensor by tensor, in row blocks.

What was packed once is mapped from the cache afterwards. Matrices that stand in the file just as they are needed (dense, same type)
are mapped from there and never copied. A cache that cannot be written costs a note, never the load.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import engine.first_call  # noqa: F401
from engine.decoder import linear, packed, pages
from engine.decoder.blueprint import Blueprint, Matrix, draw
from engine.decoder.config import DecoderConfig, from_hf
from engine.decoder.linear import DTYPES, Linear, Packed
from engine.decoder.source import AGAIN, TensorSource, open_source
from engine.decoder.weights import LayerWeights, Weights
from engine.errors import EngineError

SCHEMES = ("nf4", "int8", *DTYPES)
SMALL = 200_000_000  # weights in the layers below which four bits cost too much of what little a model knows
BLOCK = 1 << 20  # weights that are in memory at once, as float32 and a few temporaries

Progress = Callable[[str, int, int], None]  # stage, bytes packed, of how many


def resolve_scheme(quant: str, head: str, device: torch.device, config: DecoderConfig | None = None) -> tuple[str, str, torch.dtype]:
    """(scheme, head scheme, activation type) for a device. `auto` goes by what the machine can do; `config` is for its shapes."""
    for wish in (quant, head):
        if wish != "auto" and wish not in SCHEMES:
            raise EngineError(f"There is no number format {wish!r}.", f"Choose one of: auto, {', '.join(SCHEMES)}.", kind="config")
    floating = _activations(device)
    if floating == torch.float16 and config is not None and config.family.startswith("gemma"):
        floating = torch.float32  # hidden states of these leave the range of fp16
    if quant == "auto":
        quant = _auto(device, config)
    dtype = DTYPES.get(quant, floating)
    names = {dtype: name for name, dtype in DTYPES.items()}
    if head == "auto":
        head = "int8" if device.type == "cpu" and quant in ("nf4", "int8") else names[dtype]
    return quant, head if head in ("nf4", "int8") else names[dtype], dtype


def _activations(device: torch.device) -> torch.dtype:
    if device.type == "cuda":
        return torch.float16 if torch.cuda.get_device_capability(device)[0] < 8 else torch.bfloat16
    if device.type == "mps":
        try:
            torch.zeros(1, device=device, dtype=torch.bfloat16)
        except (RuntimeError, TypeError):
            return torch.float16
    return torch.bfloat16


def _auto(device: torch.device, config: DecoderConfig | None) -> str:
    names = {dtype: name for name, dtype in DTYPES.items()}
    if device.type == "cuda":
        fits = config is None or config.hidden_size % linear.NF4_BLOCK == 0 == config.intermediate_size % linear.NF4_BLOCK
        return "nf4" if fits else names[_activations(device)]
    if device.type != "cpu":
        return names[_activations(device)]
    if linear.own_kernels():
        return "int8" if config is not None and config.body_size < SMALL else "nf4"
    return "bf16" if torch.backends.cpu.get_cpu_capability() == "AVX512" else "fp32"


def load_weights(
    path: Path,
    *,
    device: str | torch.device = "cpu",
    quant: str = "auto",
    head: str = "auto",
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    use_cache: bool = True,
    note: Callable[[str], None] | None = None,
) -> Weights:
    """Load a folder or a `.gguf` file. Raises EngineError; kind "cancelled" when `cancelled()` says so between blocks."""
    device = torch.device(device)
    source = open_source(path)
    config = from_hf(source.config)
    scheme, head_scheme, dtype = resolve_scheme(quant, head, device, config)
    blueprint = draw(config, source, scheme, head_scheme, device, dtype)
    borrowed = {m.name: t for m in blueprint.everything if (t := _borrow(m, source, dtype)) is not None}
    layout = packed.arrange(_specs(blueprint, borrowed, dtype))
    layouts = {m.layout for m in blueprint.everything}
    slow = any(source.mapped(m.parts[0]) is None for m in blueprint.everything)  # values that must be computed each time
    data: Tensor | None = None
    key = None
    if use_cache and (layouts != {"dense"} or (slow and dtype in (torch.bfloat16, torch.float16))):
        kinds = {m.name.split(".")[-1]: m.layout for m in blueprint.everything}
        key = packed.key_of(source.files, scheme=scheme, head=head_scheme, dtype=str(dtype), layouts=kinds)
        try:
            data = packed.find(layout, key, path)
            if data is None:
                data = _fill(packed.FileSink(layout, key, path), blueprint, borrowed, source, dtype, progress, cancelled)
        except (OSError, EngineError) as error:
            if isinstance(error, EngineError) and error.kind != "unwritable":
                raise
            if note is not None:
                note(f"The packed weights could not be kept for the next start ({error}).")
    if data is None:
        data = _fill(packed.MemorySink(layout), blueprint, borrowed, source, dtype, progress, cancelled)
    return _assemble(blueprint, config, layout.views(data), borrowed, scheme, head_scheme, device, dtype)


def _borrow(matrix: Matrix, source: TensorSource, dtype: torch.dtype) -> Tensor | None:
    """The stored tensor itself, where it is what is wanted."""
    if matrix.layout != "dense" or len(matrix.parts) > 1 or matrix.bias or source.dtype(matrix.parts[0]) != dtype:
        return None
    return source.mapped(matrix.parts[0])


def _specs(blueprint: Blueprint, borrowed: dict[str, Tensor], dtype: torch.dtype) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
    specs = [spec for m in blueprint.everything if m.name not in borrowed for spec in m.specs(dtype)]
    return specs + [(vector.name, dtype, (vector.size,)) for vector in blueprint.vectors]


def _fill(
    sink: packed.Sink,
    blueprint: Blueprint,
    borrowed: dict[str, Tensor],
    source: TensorSource,
    dtype: torch.dtype,
    progress: Progress | None,
    cancelled: Callable[[], bool] | None,
) -> Tensor:
    matrices = [m for m in blueprint.everything if m.name not in borrowed]
    total = sum(m.shape[0] * m.shape[1] for m in matrices)
    done = 0
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # blocks are small: more threads gain little, and lose much where the cores are busy
    try:
        for vector in blueprint.vectors:
            values = source.read(vector.part)
            sink.put(vector.name, ((values.float() + vector.offset) if vector.offset else values).to(dtype))
        for matrix in matrices:
            done = _pack(sink, matrix, source, dtype, progress, cancelled, done, total)
        return sink.finish()
    except BaseException:
        sink.abort()
        raise
    finally:
        torch.set_num_threads(threads)


def _pack(
    sink: packed.Sink,
    matrix: Matrix,
    source: TensorSource,
    dtype: torch.dtype,
    progress: Progress | None,
    cancelled: Callable[[], bool] | None,
    done: int,
    total: int,
) -> int:
    n, k = matrix.shape
    step = max(linear.TILE, BLOCK // k // linear.TILE * linear.TILE)
    for start in range(0, n, step):
        if cancelled is not None and cancelled():
            raise EngineError("Loading was stopped.", kind="cancelled")
        rows = _rows(source, matrix, start, min(start + step, n))
        block = linear.pack(rows, matrix.layout, dtype)
        for name, tensor in block.tensors.items():
            sink.put(f"{matrix.name}.{name}", tensor, start)
        done += rows.numel()
        if progress is not None:
            progress("Packing weights", done, total)
    if matrix.bias:
        sink.put(f"{matrix.name}.bias", torch.cat([source.read(part).to(dtype) for part in matrix.bias]))
    return done


def _rows(source: TensorSource, matrix: Matrix, start: int, stop: int) -> Tensor:
    """Rows [start, stop) of the stacked parts."""
    pieces: list[Tensor] = []
    first = 0
    for part, size in zip(matrix.parts, matrix.sizes, strict=True):
        low, high = max(start, first), min(stop, first + size)
        if low < high:
            piece = source.read_rows(part, low - first, high - first)
            if not torch.isfinite(piece.sum(dtype=torch.float32)):
                raise EngineError(f"{part} holds values that are no numbers.", AGAIN, kind="corrupt_weights")
            pieces.append(piece)
        first += size
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _assemble(
    blueprint: Blueprint,
    config: DecoderConfig,
    views: dict[str, Tensor],
    borrowed: dict[str, Tensor],
    scheme: str,
    head_scheme: str,
    device: torch.device,
    dtype: torch.dtype,
) -> Weights:
    def build(matrix: Matrix, out: torch.dtype = dtype) -> Linear:
        names = [name.rpartition(".")[2] for name, _, _ in matrix.specs(dtype)]
        own = {"weight": borrowed[matrix.name]} if matrix.name in borrowed else {n: views[f"{matrix.name}.{n}"] for n in names}
        bias = own.pop("bias", None)
        return linear.build(Packed(matrix.layout, matrix.shape, own), bias, device, out)

    linears = {matrix.name: build(matrix) for matrix in blueprint.matrices}
    norms = {vector.name: views[vector.name].to(device) for vector in blueprint.vectors}
    layers = tuple(
        LayerWeights(
            qkv=linears[f"{at}qkv"],
            o=linears[f"{at}o"],
            gate_up=linears[f"{at}gate_up"],
            down=linears[f"{at}down"],
            attn_norm=norms[f"{at}attn_norm"],
            mlp_norm=norms[f"{at}mlp_norm"],
            post_attn_norm=norms.get(f"{at}post_attn_norm"),
            post_mlp_norm=norms.get(f"{at}post_mlp_norm"),
            q_norm=norms.get(f"{at}q_norm"),
            k_norm=norms.get(f"{at}k_norm"),
        )
        for at in (f"layers.{i}." for i in range(config.n_layers))
    )
    embed = (borrowed["embed"] if "embed" in borrowed else views["embed.weight"]).to(device)
    # our kernels give float32 logits: rounding them would only make ties
    wide = torch.float32 if blueprint.head and blueprint.head.layout.endswith("_tiles") else dtype
    head = build(blueprint.head, wide) if blueprint.head else linear.Dense(embed, None)
    nbytes = sum(x.nbytes for x in linears.values()) + sum(x.nbytes for x in norms.values()) + embed.nbytes
    nbytes += head.nbytes if blueprint.head else 0
    tied = blueprint.head is None
    read = [t for name, t in (views | borrowed).items() if tied or name.partition(".")[0] != "embed"]  # by every pass; of `embed` some rows
    waiting = pages.later(read if device.type == "cpu" else ())
    return Weights(config, embed, layers, norms["norm"], head, scheme, head_scheme, device, dtype, nbytes, waiting)
