"""What it is worth that weights move into large pages: the same passes from a mapped file and from large pages, in turns. Markdown.

    specchat pull qwen2.5-coder-1.5b
    python tests/benchmarks/large_pages.py [-t TARGET] [--quant Q] [--length N] [--times N]

The target is loaded twice, and one of the two moves. Milliseconds of a pass are medians; the logits must be equal.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from math import inf
from pathlib import Path
from time import perf_counter

import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from engine.catalog import catalog  # noqa: E402
from engine.catalog.stored import where  # noqa: E402
from engine.decoder import pages  # noqa: E402
from engine.decoder.opened import open_target  # noqa: E402
from engine.decoder.target import LeanTarget  # noqa: E402
from engine.machine import use_physical_cores  # noqa: E402
from engine.protocol import LoadOptions  # noqa: E402

WIDTHS = (1, 2, 4, 8)


def opened(name: str, quant: str, length: int) -> LeanTarget:
    """The target with so many tokens in its cache."""
    spec = catalog.load().target(name)
    options = LoadOptions(quant=quant)
    target = open_target(spec, where(spec), torch.device("cpu"), options, length + 64, lambda *_: None, lambda: False).target
    if not isinstance(target, LeanTarget):
        raise SystemExit(f"{name} runs through transformers; there is nothing of ours to time.")
    target.prefill(list(range(100, 100 + length)))
    return target


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-t", "--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("--quant", default="auto")
    parser.add_argument("--length", type=int, default=200, help="tokens in the cache")
    parser.add_argument("--times", type=int, default=15)
    given = parser.parse_args()
    if not pages.possible():
        raise SystemExit("This system gives no large pages.")
    threads = use_physical_cores()
    moved = opened(given.target, given.quant, given.length)
    total, begun = moved.model.weights.pages.left, perf_counter()
    pages.move(inf)
    took_s = perf_counter() - begun
    mapped = opened(given.target, given.quant, given.length)
    print(f"{given.target}, {threads} threads: {total / 1e6:.0f} MB moved in {took_s:.2f} s\n")
    print("| rows | mapped, ms | large pages, ms | ratio |\n| ---: | ---: | ---: | ---: |")
    for width in WIDTHS:
        took: dict[int, list[float]] = {id(target): [] for target in (mapped, moved)}
        for _ in range(given.times):
            logits = []
            for target in (mapped, moved):
                begun = perf_counter()
                logits.append(target.verify(torch.arange(width), tuple(range(width - 1))).clone())
                took[id(target)].append(1000 * (perf_counter() - begun))
            assert torch.equal(*logits)
        one, other = (statistics.median(took[id(target)][1:]) for target in (mapped, moved))
        print(f"| {width} | {one:.1f} | {other:.1f} | {one / other:.2f} |", flush=True)


if __name__ == "__main__":
    main()
