"""Where the time of a step goes, for a target and each drafter: bytes, limit, cost by width, the host's share, share by part. Markdown.

    specchat pull qwen2.5-coder-1.5b qwen2.5-coder-0.5b smollm2-135m
    python tests/benchmarks/step_cost.py [-t TARGET] [-d DRAFTER …] [--quant Q] [--head H] [--length N] [--tokens N] [--times N]

The limit of a pass is the time in which the same threads read a block as large as its weights, keys and values; it is measured in the same
run. Parts are timed one kind at a time over all layers, each the median of some rounds; what is left of the pass is "rest" (embedding,
Python, meeting threads). The steps come from real replies, the drafter's lengths from the controller.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from engine import costs  # noqa: E402
from engine.catalog import catalog  # noqa: E402
from engine.catalog.stored import where  # noqa: E402
from engine.decoder import pages  # noqa: E402
from engine.decoder.front import Gate, RmsNorm  # noqa: E402
from engine.decoder.load import load_weights  # noqa: E402
from engine.decoder.opened import Opened, open_target  # noqa: E402
from engine.decoder.target import LeanTarget  # noqa: E402
from engine.drafters.registry import Beside, build  # noqa: E402
from engine.machine import use_physical_cores  # noqa: E402
from engine.protocol import Event, Generate, LoadOptions, Message, Sampling, Step  # noqa: E402
from engine.session import Session  # noqa: E402
from engine.speculation.control import Controller  # noqa: E402
from tests.benchmarks.stream import read_gb_s  # noqa: E402

WIDTHS = (1, 2, 4, 6, 8, 12, 16)
PARTS = ("qkv", "attention", "o", "gate_up", "down", "head", "rest")
PROMPT = "Write a Python function that merges two sorted lists into one sorted list without using sort(). Add a docstring."
CPU = torch.device("cpu")


def timed(work: Callable[[], object], times: int) -> float:
    """Median milliseconds of some rounds, after one that is thrown away."""
    work()
    took = []
    for _ in range(times):
        begun = perf_counter()
        work()
        took.append(perf_counter() - begun)
    return 1000 * statistics.median(took)


def step_bytes(runner: LeanTarget) -> int:
    """What one pass reads: all layers, the head, the keys and values that are held. Of the embedding only rows are read."""
    weights, config = runner.model.weights, runner.model.config
    layers = sum(p.nbytes for layer in weights.layers for p in (layer.qkv, layer.o, layer.gate_up, layer.down))
    kv = 2 * config.n_layers * config.n_kv_heads * config.head_dim * weights.dtype.itemsize * runner.length
    return layers + weights.head.nbytes + kv


def by_width(runner: LeanTarget, times: int) -> dict[int, float]:
    """Milliseconds of a verify by its number of rows, its choice read on the host."""

    def verify(rows: int) -> None:
        runner.verify(torch.zeros(rows, dtype=torch.int64), tuple(range(rows - 1))).argmax(-1).tolist()

    return {rows: timed(lambda rows=rows: verify(rows), times) for rows in WIDTHS}


@torch.inference_mode()
def by_part(runner: LeanTarget, whole_ms: float, times: int) -> dict[str, float]:
    """Milliseconds of a pass of one row by part."""
    model, config = runner.model, runner.model.config
    weights, dtype = model.weights, model.weights.dtype
    x, wide = (torch.randn(1, n).to(dtype) for n in (config.hidden_size, config.n_heads * config.head_dim))
    qkv = torch.randn(1, (config.n_heads + 2 * config.n_kv_heads) * config.head_dim).to(dtype)
    middle = torch.randn(1, 2 * config.intermediate_size).to(dtype)
    norm, gate = RmsNorm(weights.norm, config.norm_eps), Gate("silu" if config.activation == "silu" else "gelu")
    out = {
        "qkv": timed(lambda: [layer.qkv(x, norm) for layer in weights.layers], times),
        "o": timed(lambda: [layer.o(wide, add=x) for layer in weights.layers], times),
        "gate_up": timed(lambda: [layer.gate_up(x, norm) for layer in weights.layers], times),
        "down": timed(lambda: [layer.down(middle, gate, x) for layer in weights.layers], times),
        "head": timed(lambda: model.head(x, norm), times),
    }
    if model.fused is not None:  # elsewhere attention stays in "rest"
        runner.cache.reserve(1)
        begun = model.fused.begin(runner.cache, ())
        out["attention"] = timed(lambda: [begun(i, qkv) for i in range(config.n_layers)], times)
    return {part: out.get(part, 0.0) for part in PARTS} | {"rest": max(whole_ms - sum(out.values()), 0.0)}


def model_row(name: str, runner: LeanTarget, length: int, times: int) -> tuple[str, str]:
    """Rows of the two tables of models."""
    runner.truncate(0)
    runner.prefill([1 + i % 1000 for i in range(length)])
    size = step_bytes(runner)
    speed = read_gb_s(size, torch.get_num_threads())
    costs_ms = by_width(runner, times)
    limit_ms = size / speed / 1e6
    weights = runner.model.weights
    widths = " | ".join(f"{ms:.1f}" for ms in costs_ms.values())
    first = f"| {name} | {weights.scheme}, {weights.head_scheme} | {size / 1e6:.0f} | {speed:.1f} | {limit_ms:.2f} "
    first += f"| {limit_ms / costs_ms[1]:.0%} | {widths} |"
    parts = by_part(runner, costs_ms[1], times)
    second = f"| {name} | " + " | ".join(f"{parts[part]:.2f} ({parts[part] / costs_ms[1]:.0%})" for part in PARTS) + " |"
    runner.truncate(0)
    return first, second


def reply(session: Session, tokens: int) -> list[Step]:
    """The steps of one greedy reply."""
    seen: list[Event] = []
    command = Generate(1, (Message("user", PROMPT),), sampling=Sampling(temperature=0.0, repeat_penalty=1.0), max_tokens=tokens)
    session.reply(command, seen.append, lambda: False, lambda: None)
    return [event for event in seen if isinstance(event, Step)]


def step_row(name: str, steps: list[Step]) -> str:
    """A row of the table of steps: means in ms."""
    n = len(steps)

    def mean(part: str) -> float:
        return 1000 * sum(getattr(step, part) for step in steps) / n

    whole = 1000 * steps[-1].at_s / n
    parts = [mean(part) for part in ("draft_s", "bridge_s", "verify_s", "other_s")]
    drafted, emitted = sum(step.nodes for step in steps), sum(step.emitted for step in steps)
    cells = [f"{ms:.2f} ({ms / whole:.0%})" for ms in [*parts, max(whole - sum(parts), 0.0)]]
    return f"| {name} | {emitted / n:.2f} | {drafted / n:.2f} | {whole:.2f} | " + " | ".join(cells) + " |"


def open_lane(given: argparse.Namespace) -> tuple[Opened, Session]:
    """The target, and a session on it."""
    spec = catalog.load().target(given.target)
    options = LoadOptions(quant=given.quant, head=given.head)
    opened = open_target(spec, where(spec), CPU, options, 4096, lambda *_: None, lambda: False)
    if not isinstance(opened.target, LeanTarget):
        raise SystemExit(f"{given.target} runs through transformers; there is nothing of ours to time.")
    pages.move(inf)  # at once, as they are in a chat soon after loading
    return opened, Session(opened.target, opened.tokenizer, opened.sampling, opened.tokenizer.stop, Controller())


def main() -> None:
    """Print three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-t", "--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("-d", "--drafters", nargs="*", default=["ngram", "smollm2-135m", "qwen2.5-coder-0.5b", "auto"])
    parser.add_argument("--quant", default="auto")
    parser.add_argument("--head", default="auto")
    parser.add_argument("--length", type=int, default=200, help="tokens in the cache")
    parser.add_argument("--tokens", type=int, default=128, help="of each reply")
    parser.add_argument("--times", type=int, default=15)
    given = parser.parse_args()
    threads = use_physical_cores()
    opened, session = open_lane(given)
    target = session.target
    assert isinstance(target, LeanTarget)
    firsts, seconds = [], []
    names = catalog.load()
    first, second = model_row(given.target, target, given.length, given.times)
    firsts.append(first)
    seconds.append(second)
    for name in given.drafters:
        spec = names.drafter(name)
        if spec.kind == "model":
            weights = load_weights(where(spec), device=CPU, quant="auto" if opened.scheme == "nf4" else opened.scheme)
            pages.move(inf)
            first, second = model_row(name, LeanTarget(weights, 4096), given.length, given.times)
            firsts.append(first)
            seconds.append(second)
    print(f"{threads} threads, {given.length} tokens in the cache; ms\n")
    print("| model | weights, head | MB a pass | read GB/s | limit | of the limit | " + " | ".join(map(str, WIDTHS)) + " rows |")
    print("| :--- | :--- " + "| ---: " * (4 + len(WIDTHS)) + "|\n" + "\n".join(firsts))
    print("\nOne row by part, ms:\n\n| model | " + " | ".join(PARTS) + " |\n| :--- " + "| ---: " * len(PARTS) + "|\n" + "\n".join(seconds))
    print(f"\nSteps of a reply of {given.tokens} tokens, T = 0, ms a step:\n")
    print("| drafter | tokens | drafted | step | drafting | bridge | verify | choice, text, commit | between steps |")
    print("| :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in ["none", *given.drafters]:
        print(step_row(name, _steps(session, opened, given, names.drafter(name))), flush=True)


def _steps(session: Session, opened: Opened, given: argparse.Namespace, drafter: Any) -> list[Step]:
    target = session.target
    spec = catalog.load().target(given.target)
    beside = Beside(spec, opened.tokenizer, target.vocab_size, target.context, CPU, opened.scheme, 0.0, target)
    session.loaded.drafter = build(drafter, "auto", beside, CPU, LoadOptions()).drafter
    pages.move(inf)
    if session.loaded.drafter is not None:
        costs.measure(target, session.loaded.drafter, session.control, lambda: None)
    reply(session, 16)
    steps = reply(session, given.tokens)
    if session.loaded.drafter is not None:
        session.loaded.drafter.close()
        session.loaded.drafter = None
    return steps


if __name__ == "__main__":
    main()
