"""The table of `check.sh`: plain and speculative tok/s, share of the card's bandwidth, against transformers.

Models that are on this machine (`specchat models`), with their own drafters; where there are none, random weights in the shapes of 1B and
8B with a drafter that is right four times in five. Each line is printed as soon as it is measured; what does not fit is said.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.catalog import catalog, hub
from engine.catalog.specs import NGRAM, ModelSpec
from engine.cuda import attend, notebook, tune
from engine.decoder.load import _activations
from engine.decoder.opened import open_target
from engine.decoder.target import LeanTarget
from engine.drafters.registry import Beside, build
from engine.protocol import LoadOptions
from engine.speculation.draft import Drafter
from tests.gpu.shapes import config_of, random_weights, step_bytes
from tests.tiny import Adversary, write

CARD = torch.device("cuda:0")
TOKENS = 192
BUDGET_S = 220.0
PROMPT = "Write a Python function that merges two sorted lists, with a docstring, then explain it line by line."
begun = time.perf_counter()


@dataclass(frozen=True)
class Speed:
    """Tokens per second of a reply, and seconds of its plain step."""

    tok_per_s: float
    ids: list[int]
    tau: float


def bandwidth() -> float:
    """Bytes per second that copies on this card reach, read and written."""
    a = torch.empty(1 << 29, dtype=torch.uint8, device=CARD)
    b = torch.empty_like(a)
    b.copy_(a)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(10):
        b.copy_(a)
    torch.cuda.synchronize()
    return 20 * a.nbytes / (time.perf_counter() - start)


def speed(target: LeanTarget, prompt: list[int], drafter: Drafter | None, k: int) -> Speed:
    """The second of two replies: the first records the passes."""
    for _ in range(2):
        torch.cuda.synchronize()
        run = write(target, prompt, drafter, max_tokens=TOKENS, k=k)
    steps = run.steps
    return Speed(len(run.ids) / (steps[-1].at_s - 0.0), run.ids, len(run.ids) / len(steps))


def transformers_speed(model: object, prompt: list[int]) -> float:
    """Greedy `generate`, the second of two."""
    tokens = torch.tensor([prompt], device=CARD)
    for _ in range(2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        out = model.generate(tokens, max_new_tokens=48, min_new_tokens=48, do_sample=False)  # type: ignore[attr-defined]
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    return float((out.shape[1] - tokens.shape[1]) / seconds)


def line(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def report(
    name: str, target: LeanTarget, prompt: list[int], drafters: list[tuple[str, Drafter, int]], peak: float, rival: float | None
) -> bool:
    """Lines of one target. False where a drafter changed the text that it must not change."""
    plain = speed(target, prompt, None, 0)
    share = plain.tok_per_s * step_bytes(target.model.weights) / peak
    against = f"{rival:.1f} ({plain.tok_per_s / rival:.2f}x)" if rival else "-"
    line(name, "plain", f"{plain.tok_per_s:.1f}", "1.00", f"{share:.0%}", against, "yes" if target.exact else "near-ties")
    same = True
    for label, drafter, k in drafters:
        if isinstance(drafter, Adversary):
            drafter.truth, drafter.prompt_len = plain.ids, len(prompt)
        run = speed(target, prompt, drafter, k)
        equal = run.ids == plain.ids
        same &= equal or not target.exact
        ratio = f"{run.tok_per_s / rival:.2f}x" if rival else "-"
        line(
            name,
            f"{label}, k={k}, tau {run.tau:.2f}",
            f"{run.tok_per_s:.1f}",
            f"{run.tok_per_s / plain.tok_per_s:.2f}",
            "-",
            ratio,
            "same text" if equal else "OTHER TEXT",
        )
    return same


def shapes(quick: bool, peak: float) -> bool:
    """Random weights."""
    good = True
    for name, head in (("1B", "dense"), ("1B", "nf4"), ("1B", "int8"), ("8B", "dense"), ("8B", "int8")):
        if (quick and name == "8B") or time.perf_counter() - begun > BUDGET_S:
            continue
        label = f"{name} shape, nf4, {head} head"
        try:
            target = tune.lean(random_weights(name, "nf4", head, CARD, _activations(CARD)), 4096)
            rival = shape_in_transformers(name) if head == "dense" and not quick else None
            drafters: list[tuple[str, Drafter, int]] = [
                (f"right {share:.0%} of the time", Adversary(random.Random(0), 128_256, honest=share, tree=False, name="toy"), k)
                for share, k in ((0.8, 3), (0.8, 5), (0.8, 7), (0.0, 3))
            ]
            good &= report(label, target, list(range(5, 105)), [(n, _Full(d), k) for n, d, k in drafters], peak, rival)
            costs(target)
            target.close()
        except torch.OutOfMemoryError as error:
            line(label, f"does not fit: {str(error)[:60]}", "", "", "", "", "")
        torch.cuda.empty_cache()
    return good


class _Full(Adversary):
    """Drafts as much as it may, always."""

    def __init__(self, like: Drafter) -> None:
        assert isinstance(like, Adversary)
        super().__init__(_Most(0), like.vocab_size, honest=like.honest, tree=False, name=like.name)


class _Most(random.Random):
    def randint(self, low: int, high: int) -> int:
        return high


def costs(target: LeanTarget) -> None:
    """Milliseconds of a pass by its number of rows."""
    target.truncate(0)
    target.prefill(list(range(5, 205)))
    found = []
    for width in (1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 65):
        tokens = torch.zeros(width, dtype=torch.int64)
        for _ in range(3):
            torch.cuda.synchronize()
            start = time.perf_counter()
            target.verify(tokens, tuple(range(width - 1))).argmax(-1).tolist()
            seconds = time.perf_counter() - start
        found.append(f"{width}: {1000 * seconds:.2f}")
    static = target.static
    assert static is not None
    print(f"  ms by rows {', '.join(found)}")
    print(f"  recorded {len(static)} passes, {static.recorder.nbytes >> 20} MiB; {static.trouble or 'no trouble'}")


def shape_in_transformers(name: str) -> float | None:
    """`generate` of the same shape in nf4 by bitsandbytes; None where it does not fit beside ours."""
    from bitsandbytes.nn import Linear4bit
    from transformers import LlamaConfig, LlamaForCausalLM

    config = config_of(name)
    like = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        num_key_value_heads=config.n_kv_heads,
        head_dim=config.head_dim,
    )
    dtype = _activations(CARD)
    try:
        with torch.device("meta"):
            model = LlamaForCausalLM(like).to(dtype)
        for layer in model.model.layers:
            for part in (layer.self_attn, layer.mlp):
                for child, old in list(part.named_children()):
                    if isinstance(old, torch.nn.Linear):
                        new = Linear4bit(old.in_features, old.out_features, bias=False, compute_dtype=dtype, quant_type="nf4")
                        new.weight.data = torch.randn(old.out_features, old.in_features, dtype=dtype, device=CARD).mul_(0.02).cpu()
                        setattr(part, child, new.to(CARD))
        head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False, dtype=dtype, device=CARD)
        table = torch.nn.Embedding(config.vocab_size, config.hidden_size, dtype=dtype, device=CARD)
        model.lm_head, model.model.embed_tokens = head, table
        for module in model.modules():
            if type(module).__name__ == "LlamaRMSNorm":
                module.weight = torch.nn.Parameter(torch.ones(config.hidden_size, dtype=dtype, device=CARD))
        model.model.rotary_emb = type(model.model.rotary_emb)(like).to(CARD)
        return transformers_speed(model.eval(), list(range(5, 105)))
    except (torch.OutOfMemoryError, RuntimeError, NotImplementedError, ValueError, AttributeError, TypeError) as error:
        print(f"  transformers was not measured: {type(error).__name__}: {str(error)[:160]}")
        return None


def real(quick: bool, peak: float) -> tuple[int, bool]:
    """Models that are here: how many, and whether all texts were what they must be."""
    known, count, good = catalog.load(), 0, True
    for spec in known.targets.values():
        path = hub.locate(spec)
        if path is None or time.perf_counter() - begun > BUDGET_S:
            continue
        try:
            opened = open_target(spec, path, CARD, LoadOptions(), 4096, lambda *_: None, lambda: False)
        except Exception as error:
            line(spec.name, f"not loaded: {error}"[:120], "", "", "", "", "")
            continue
        target = opened.target
        if not isinstance(target, LeanTarget):
            continue
        count += 1
        prompt = opened.tokenizer.encode(PROMPT, special=True)
        drafters: list[tuple[str, Drafter, int]] = []
        for other in (NGRAM, *known.drafters_for(spec)):
            if other.kind == "ngram" or (other.kind == "model" and hub.locate(other) is not None):
                beside = Beside(spec, opened.tokenizer, target.vocab_size, target.context, CARD, opened.scheme, 0.0, target)
                built = (
                    build(other, "auto" if other.kind == "ngram" else "model", beside, CARD, LoadOptions()) if _same(other, spec) else None
                )
                if built is not None and built.drafter is not None:
                    drafters.append((other.name, built.drafter, 4))
        good &= report(
            f"{spec.name} {opened.scheme}/{opened.head_scheme}", target, prompt, drafters, peak, None if quick else rival_of(path, prompt)
        )
        costs(target)
        for _, drafter, _ in drafters:
            drafter.close()
        target.close()
        torch.cuda.empty_cache()
    return count, good


def _same(other: ModelSpec, spec: ModelSpec) -> bool:
    """Drafters through the bridge need a question, which this loop has not."""
    return other.kind == "ngram" or other.name.rpartition("-")[0] == spec.name.rpartition("-")[0]


def rival_of(path: Path, prompt: list[int]) -> float | None:
    """transformers with the same file, in 16 bits where that is a GGUF, else in nf4."""
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    dtype = _activations(CARD)
    options = (
        {"gguf_file": path.name}
        if path.is_file()
        else {"quantization_config": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)}
    )
    try:
        folder = path.parent if path.is_file() else path
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, device_map={"": str(CARD)}, **options)
        return transformers_speed(model.eval(), prompt)
    except Exception as error:
        print(f"  transformers was not measured: {type(error).__name__}: {str(error)[:160]}")
        return None


def main() -> int:
    """Print the table; 1 where a text is not what it must be."""
    quick = "--quick" in sys.argv
    tune.settings(CARD)
    peak = bandwidth()
    own = "own attention" if attend.possible(CARD, _activations(CARD)) else "the library's attention"
    print(f"{notebook.card(CARD)}; {peak / 1e9:.0f} GB/s in copies; {own}\n")
    line("target", "drafter", "tok/s", "against plain", "bandwidth", "transformers", "exact")
    line(*["---"] * 7)
    count, good = real(quick, peak)
    if count == 0:
        good = shapes(quick, peak)
    print(f"\n{time.perf_counter() - begun:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
