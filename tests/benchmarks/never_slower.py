"""Never slower: 50 mixed prompts, plain and with the drafter in turns; each prompt's ratio, and why those under 1 are under 1.

    python tests/benchmarks/never_slower.py [-t TARGET] [-d DRAFTER] [--tokens 96] [--prompts 50] [--temperature T] [--json FILE]

Both run in processes of their own. Each prompt is measured as plain, drafter, drafter, plain; its ratio is the median of its two pairs. How
far two plain runs of one prompt differ is the noise. The exit code is 1 when a ratio is under 0.95.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from app.prompts import Prompt, read  # noqa: E402
from tests.benchmarks.children import Child  # noqa: E402

HERE = Path(__file__).parent
LEAST = 0.95


def mixed(count: int) -> list[Prompt]:
    """The bundled sets and some more, one of each kind in turn."""
    kinds: dict[str, list[Prompt]] = {}
    for prompt in (*read("all"), *read(str(HERE / "mixed.jsonl"))):
        kinds.setdefault(prompt.task, []).append(prompt)
    turns = itertools.chain.from_iterable(itertools.zip_longest(*kinds.values()))
    return [prompt for prompt in turns if prompt is not None][:count]


def rate(answer: dict[str, Any]) -> float:
    return answer["tokens"] / answer["seconds"] if answer["seconds"] > 0 else 0.0


def measure(plain: Child, drafted: Child, prompt: Prompt, tokens: int, temperature: float) -> dict[str, Any]:
    """Two pairs of one prompt."""
    question = {"prompt": prompt.text, "tokens": tokens, "temperature": temperature}
    found = [(lane, lane.ask(**question)) for lane in (plain, drafted, drafted, plain)]
    ours, theirs = ([answer for lane, answer in found if lane is which] for which in (drafted, plain))
    pairs = [rate(a) / rate(b) for a, b in zip(ours, theirs, strict=True)]
    last = ours[-1]
    return {
        "task": prompt.task,
        "prompt": prompt.text,
        "tokens": last["tokens"],
        "plain": statistics.median(map(rate, theirs)),
        "drafted": statistics.median(map(rate, ours)),
        "ratio": statistics.median(pairs),
        "noise": rate(theirs[1]) / rate(theirs[0]) if rate(theirs[0]) else 1.0,
        "same": len({answer["text"] for _, answer in found}) == 1,
        "tau": last["tau"],
        "kept": last["kept"],
        "drafting_steps": last["drafted_steps"] / max(last["steps"], 1),
        "drafting_share": last["draft_s"] / last["seconds"] if last["seconds"] else 0.0,
        "notices": [text for answer in ours for text in answer["notices"]],
        "sources": last["sources"],
    }


def reasons(row: dict[str, Any]) -> list[str]:
    """Why the controller did what it did."""
    did = f"{row['drafting_steps']:.0%} of the steps drafted, {row['kept']:.0%} kept, drafting took {row['drafting_share']:.0%} of the time"
    return [did, *row["notices"], *row["sources"]]


def main() -> None:
    """Print a table, the reasons and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-t", "--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("-d", "--drafter", default="auto")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    plain, drafted = (Child(HERE / "serve_specchat.py", "--target", given.target, "--drafter", name) for name in ("none", given.drafter))
    said = (plain.listen(), drafted.listen())[1]
    for lane in (plain, drafted):
        lane.ask(prompt="Say hello.", tokens=16)
    print(f"{given.target} ({said['weights']}) <- {said['drafter']}, {given.tokens} tokens, T = {given.temperature}\n")
    print("| kind | ratio | plain | drafted | tau | steps that drafted | same text | prompt |")
    print("| :--- | ---: | ---: | ---: | ---: | ---: | :--- | :--- |")
    rows = []
    for prompt in mixed(given.prompts):
        row = measure(plain, drafted, prompt, given.tokens, given.temperature)
        rows.append(row)
        cells = [row["task"], f"{row['ratio']:.2f}", f"{row['plain']:.1f}", f"{row['drafted']:.1f}", f"{row['tau']:.2f}"]
        cells += [f"{row['drafting_steps']:.0%}", "yes" if row["same"] else "NO", prompt.text.splitlines()[0][:50].replace("|", "/")]
        print("| " + " | ".join(cells) + " |", flush=True)
    for lane in (plain, drafted):
        lane.close()
    noise = sorted(abs(row["noise"] - 1) for row in rows)
    slow = [row for row in rows if row["ratio"] < 1]
    for row in sorted(slow, key=lambda row: row["ratio"]):
        print(f"\n{row['ratio']:.2f}: {row['prompt'].splitlines()[0][:90]}")
        for reason in reasons(row):
            print(f"  - {reason}")
    lowest = min(row["ratio"] for row in rows)
    ratios = statistics.quantiles([row["ratio"] for row in rows], n=4) if len(rows) > 1 else [lowest] * 3
    print(f"\n{len(rows)} prompts: lowest {lowest:.2f}, quartiles {ratios[0]:.2f}, {ratios[1]:.2f}, {ratios[2]:.2f}; {len(slow)} under 1, "
          f"{sum(row['ratio'] < LEAST for row in rows)} under {LEAST}.")  # fmt: skip
    print(f"Noise: two plain runs of a prompt differ by {noise[len(noise) // 2]:.1%} (median), {noise[int(0.95 * len(noise))]:.1%} (95 %), "
          f"{noise[-1]:.1%} (most).")  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    raise SystemExit(1 if lowest < LEAST else 0)


if __name__ == "__main__":
    main()
