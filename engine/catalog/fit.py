"""Does it fit? An estimate of memory from a model's headers alone, and the words fits, tight, no. No torch, no weights read.

weights  values x bits of the scheme; the LM head apart; on the CPU the embedding is mapped from disk and not counted
kv       2 x layers x KV heads x head size x bytes per value, per token; a sliding-window layer holds its window at most
work     what a pass needs beside them, and the libraries themselves

`expected` is what to decide by: no more hopeful than what the last load of the same model here took. Quantities are bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import psutil

from engine import spare
from engine.catalog import hardware, head_shape, headers, measured, needed
from engine.catalog.progress import human
from engine.errors import EngineError

BITS = {"nf4": 4.5, "int8": 8.0, "bf16": 16.0, "fp16": 16.0, "fp32": 32.0}  # nf4: 4 bits and a scale for 64 values
RESERVE = 500_000_000
ROOM = 1_000_000_000  # more than this left over: fits; less: tight
LIBRARIES = {"cuda": 700_000_000, "cpu": 400_000_000, "mps": 400_000_000}
RECORDED = 300_000_000  # passes that are recorded on a card, and their intermediate numbers
CHUNK = 512  # tokens of a prompt that go through at once
PACKING = 24_000_000  # what a block of a matrix needs while it is made smaller
ROWS = 16  # rows of logits in a verify, at most in the default setting
ELSEWHERE = ("vision", "visual", "audio", "multi_modal", "mm_projector", "mtp.")  # parts that a text chat does not load
Verdict = Literal["fits", "tight", "no"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What the estimate needs to know of a model."""

    body: int  # values in the layers
    embedding: int
    head: int
    tied: bool
    hidden: int
    inner: int
    vocab: int
    kv_per_token: tuple[int, ...]  # values per token, one entry per layer
    windows: tuple[int | None, ...]  # tokens that the layer keeps at most


@dataclass(frozen=True, slots=True)
class Fit:
    """Estimated bytes of a loaded model at a context length."""

    weights: int
    kv: int
    work: int
    context: int
    kv_full: int = 0  # bytes per token of the layers that keep everything
    quant: str = ""
    head: str = ""

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.work


def estimate(path: Path, *, quant: str = "auto", head: str = "auto", context: int = 4096, device: str = "auto") -> Fit:
    """Memory for the model or the draft heads at `path` (a folder or a .gguf file). Schemes and device may be "auto"."""
    kind = _kind(device)
    quant = default_quant(kind) if quant == "auto" else quant
    if needed.is_heads(path):
        return _heads(head_shape.of_folder(path), quant, context, kind)
    if head == "auto":
        head = quant if quant not in ("nf4", "int8") else "int8" if kind == "cpu" else "bf16"
    model = _from_gguf(path) if path.is_file() else _from_folder(path)
    wide = 4 if quant == "fp32" else 2
    weights = model.body * BITS[quant] / 8 + model.head * BITS[head] / 8
    if kind != "cpu" and not (model.tied and BITS[head] >= 16):  # else head and embedding are one tensor
        weights += model.embedding * wide
    kv = [wide * per * min(context, window or context) for per, window in zip(model.kv_per_token, model.windows, strict=True)]
    full = sum(wide * per for per, window in zip(model.kv_per_token, model.windows, strict=True) if not window)
    work = wide * CHUNK * (4 * model.hidden + 3 * model.inner) + 4 * 3 * ROWS * model.vocab + LIBRARIES[kind]
    if kind == "cuda":  # bitsandbytes unpacks a whole matrix while a prompt is read
        work += RECORDED + (wide * 2 * model.inner * model.hidden if quant == "nf4" else 0)
    return Fit(round(weights), sum(kv), work, context, full, quant, head)


def expected(path: Path, *, quant: str = "auto", head: str = "auto", context: int = 4096, device: str = "auto") -> Fit:
    """`estimate`, where the last load of this model on this machine took no more; else with what it took."""
    found, kind = estimate(path, quant=quant, head=head, context=context, device=device), _kind(device)
    more = measured.recall_bytes(path, found.quant, found.head, kind) + LIBRARIES[kind] - found.weights - found.work
    return replace(found, work=found.work + more) if more > 0 else found


def _heads(heads: head_shape.HeadShape, quant: str, context: int, kind: str) -> Fit:
    """Draft heads: all matrices in one scheme, an LM head of their own too."""
    wide = 4 if quant == "fp32" else 2
    weights = heads.body * BITS[quant] / 8 + (heads.embedding * wide if kind != "cpu" else 0)
    passing = wide * CHUNK * (4 * heads.hidden + 3 * heads.inner) + 4 * 3 * ROWS * heads.vocab
    work = max(PACKING, passing) + LIBRARIES[kind]
    per_token = wide * heads.kv_per_token
    return Fit(round(weights), per_token * context, work, context, per_token, quant)


def without_libraries(fit: Fit, device: str = "auto") -> Fit:
    """For a second model beside the first: the libraries are there already."""
    return replace(fit, work=fit.work - LIBRARIES[_kind(device)])


def default_quant(device: str) -> str:
    """What `auto` stands for: 4 bits where they are fast (DESIGN 5), else 16."""
    if _kind(device) == "cuda":
        return "nf4"
    return "nf4" if _kind(device) == "cpu" and hardware.probe().fast_4bit else "bf16"


def available(device: str = "auto") -> tuple[int, int]:
    """(free, total) of the device right now."""
    kind = _kind(device)
    if kind == "cuda":
        cards = hardware.nvidia()
        number = device.partition(":")[2]
        index = int(number) if number.isdigit() else max(range(len(cards)), key=lambda i: cards[i].free, default=0)
        return (cards[index].free, cards[index].total) if index < len(cards) else (0, 0)
    return spare.available(), psutil.virtual_memory().total


def verdict(need: int, free: int) -> Verdict:
    """fits: more than 1 GB left over after a reserve of 0.5 GB; tight: less; no: not enough."""
    left = free - need - RESERVE
    return "no" if left < 0 else "tight" if left <= ROOM else "fits"


def check(target: Fit, drafter: Fit | None, free: int) -> None:
    """EngineError(kind="memory") with numbers and choices when they do not fit. The drafter goes before the target:
    `numbers["drop_drafter"]` is 1 when the target alone fits, and `numbers["context"]` is a context that does, 0 when none."""
    need = target.total + (drafter.total if drafter else 0)
    if verdict(need, free) != "no":
        return
    alone = drafter is not None and verdict(target.total, free) != "no"
    per_token = target.kv_full + (drafter.kv_full if drafter else 0)
    over = need + RESERVE - free
    context = max(0, (target.context - -(-over // per_token)) // 256 * 256) if per_token else 0
    choices = []
    if alone:
        choices.append("load it without the drafter (-d none)")
    if context >= 1024:
        choices.append(f"a smaller context (--context {context})")
    if BITS.get(target.quant, 0) > 4.5:
        choices.append("fewer bits (--quant nf4)" if target.quant == "int8" else "fewer bits (--quant int8 or nf4)")
    choices.append("a smaller model")
    what = f"the target {human(target.total)}" + (f" and the drafter {human(drafter.total)}" if drafter else "")
    raise EngineError(
        f"Not enough memory: {what}, of which {human(target.kv)} are for {target.context} tokens of context, "
        f"but {human(max(0, free - RESERVE))} are free.",
        f"Choices: {'; '.join(choices)}.",
        kind="memory",
        numbers={
            "need": need,
            "free": free,
            "reserve": RESERVE,
            "target": target.total,
            "drafter": drafter.total if drafter else 0,
            "drop_drafter": int(alone),
            "context": context if context >= 1024 else 0,
        },
    )


def _kind(device: str) -> str:
    kind = device.partition(":")[0]
    return hardware.probe().device if kind == "auto" else kind if kind in LIBRARIES else "cuda"


def _from_folder(folder: Path) -> Shape:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise headers.missing(folder / "config.json") from None
    except ValueError as error:
        raise headers.corrupt(folder / "config.json", str(error)) from None
    tensors: dict[str, headers.Shape] = {}
    for name in needed.shards(folder):
        tensors |= needed.contents(folder / name)
    tensors = {name: shape for name, shape in tensors.items() if not any(part in name for part in ELSEWHERE)}
    config = config.get("text_config") or config
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    per = 2 * (config.get("num_key_value_heads") or config["num_attention_heads"]) * head_dim
    windows, recurrent = _windows(config, config["num_hidden_layers"])
    return _shape(
        tensors,
        ("embed_tokens.weight", "lm_head.weight"),
        tied=bool(config.get("tie_word_embeddings", "lm_head.weight" not in tensors)),
        hidden=config["hidden_size"],
        inner=config.get("intermediate_size") or 4 * config["hidden_size"],
        kv=tuple(0 if flat else per for flat in recurrent),
        windows=windows,
    )


def _from_gguf(file: Path) -> Shape:
    gguf = headers.gguf(file)
    arch = gguf.metadata["general.architecture"]
    read = {key.removeprefix(f"{arch}."): value for key, value in gguf.metadata.items()}
    layers, hidden, heads = read["block_count"], read["embedding_length"], read["attention.head_count"]
    key = read.get("attention.key_length") or hidden // heads
    kv_heads = read.get("attention.head_count_kv") or heads
    kv_heads = kv_heads if isinstance(kv_heads, list) else [kv_heads] * layers
    config = {"sliding_window": read.get("attention.sliding_window"), "model_type": arch}
    return _shape(
        gguf.tensors,
        ("token_embd.weight", "output.weight"),
        tied="output.weight" not in gguf.tensors,
        hidden=hidden,
        inner=read["feed_forward_length"] if isinstance(read["feed_forward_length"], int) else max(read["feed_forward_length"]),
        kv=tuple(n * (key + (read.get("attention.value_length") or key)) for n in kv_heads),
        windows=_windows(config, layers)[0],
    )


def _shape(
    tensors: dict[str, headers.Shape],
    names: tuple[str, str],
    *,
    tied: bool,
    hidden: int,
    inner: int,
    kv: tuple[int, ...],
    windows: tuple[int | None, ...],
) -> Shape:
    table = next((shape for name, shape in tensors.items() if name.endswith(names[0])), headers.Shape((0, hidden)))
    own = next((shape for name, shape in tensors.items() if name.endswith(names[1])), None)
    head = table.numel if tied or own is None else own.numel
    body = sum(shape.numel for shape in tensors.values()) - table.numel - (own.numel if own else 0)
    return Shape(body, table.numel, head, tied or own is None, hidden, inner, table.shape[0], kv, windows)


def _windows(config: dict[str, Any], layers: int) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
    """The window of each layer (None = all), and which layers keep no tokens at all (linear attention)."""
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    kinds = config.get("layer_types")
    family = str(config.get("model_type", ""))
    if not kinds:
        pattern = config.get("sliding_window_pattern") or (6 if family.startswith("gemma3") else 2 if family.startswith("gemma2") else 1)
        local = [window and (pattern == 1 or (i + 1) % pattern) for i in range(layers)]
        kinds = ["sliding_attention" if here else "full_attention" for here in local]
    return tuple(window if k == "sliding_attention" else None for k in kinds), tuple(k == "linear_attention" for k in kinds)
