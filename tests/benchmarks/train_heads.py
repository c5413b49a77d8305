"""Kinds of heads side by side: trained on the same data for the same time, judged by position on topics that none of them saw.

Makes the data once (or takes those of a training that is there), then trains every kind for every number of minutes, and prints one table.
tau counts the target's own token; ± is half of a 95 % interval over texts, so two kinds that are closer than that are not told apart.
Usage: python tests/benchmarks/train_heads.py -t TARGET --out DIR [--tokens N] [--minutes 5,15] [--kinds hydra++,gumiho,medusa]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from engine.catalog.catalog import load
from engine.protocol import Failed, LoadOptions
from engine.training import files
from engine.training.protocol import Answering, Event, Judged, Kind, Plan, Stopped, Trained
from engine.training.serve import serve

PARTS = ("data", "judge", "report")
REST = 0.93  # share of the time that is left for the training itself, data being there


@dataclass(frozen=True)
class Row:
    """One training."""

    kind: str
    minutes: float
    trained: Trained
    judged: Judged  # the best trial

    def __str__(self) -> str:
        right = " ".join(f"{share:6.1%}" for share in self.judged.agreement)
        kept = " ".join(f"{share:6.1%}" for share in self.trained.measured.kept)
        measured = self.trained.measured
        tau = f"{measured.tau:5.2f} ± {measured.spread:4.2f}"
        return f"{self.kind:8} {self.minutes:5.0f} {self.trained.steps:6,}  {right}   {kept}   {tau}  {measured.speedup:5.2f}x"


def train(plan: Plan) -> tuple[Trained, Judged]:
    """One training, or the reason why there is none."""
    best: list[Judged] = []

    def hear(event: Event) -> None:
        if isinstance(event, Judged) and event.best:
            best[:] = [event]
        if not isinstance(event, Answering):
            print(" ", event, flush=True)

    end = serve(plan, hear, lambda: False)
    if isinstance(end, (Failed, Stopped)):
        raise SystemExit(f"{plan.kind}: {end}")
    return end, best[0]


def share_data(source: Path, out: Path) -> None:
    """A new training that takes the data of another one where they lie."""
    (out / "work").mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        link = out / "work" / part
        if not link.exists():
            link.symlink_to((source / "work" / part).absolute(), target_is_directory=True)
    known = files.read_json(source / "work" / "plan.json")
    assert known is not None
    files.write_json(out / "work" / "plan.json", {"fixed": {}, "seconds": 0.0, "texts": known["texts"], "ids": []})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-t", "--target", default="qwen2.5-coder-0.5b")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=60_000)
    parser.add_argument("--minutes", default="5,15")
    parser.add_argument("--kinds", default=",".join(get_args(Kind)))
    parser.add_argument("--quant", default="auto")
    asked = parser.parse_args()
    target, options = load().target(asked.target), LoadOptions(quant=asked.quant)
    first = asked.out / "data"
    there = (first / "work" / "plan.json").exists()
    base = Plan(target, first, "medusa", "data", options, tokens=asked.tokens, epochs=1, resume=there, register=False)
    print(f"data of {asked.tokens:,} tokens", flush=True)
    train(base)
    rows: list[Row] = []
    for minutes in map(float, asked.minutes.split(",")):
        for kind in asked.kinds.split(","):
            out = asked.out / f"{kind}-{minutes:g}"
            share_data(first, out)
            print(f"{kind}, {minutes:g} minutes", flush=True)
            plan = Plan(target, out, kind, out.name, options, hours=minutes / 60 / REST, resume=True, again=True, register=False)
            rows.append(Row(kind, minutes, *train(plan)))
    positions = len(rows[0].judged.agreement)
    head = " ".join(f"{k:>6}" for k in range(1, positions + 1))
    print(f"\n{target.name}, {rows[0].trained.tokens:,} tokens of data\n")
    right, kept = "right, by position".ljust(len(head)), "kept, by position".ljust(len(head))
    print(f"{'kind':8} {'min':>5} {'steps':>6}  {right}   {kept}   tau            expected")
    print(f"{'':8} {'':5} {'':6}  {head}   {head}")
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
