"""How speed changes with the length of the text: tok/s behind 0.5k, 2k, 8k and 16k tokens, plain and with a drafter, and the time to read
8k. Markdown.

    python tests/benchmarks/context_growth.py [-t TARGET] [-d DRAFTER] [--lengths 512,2048,8192,16384] [--tokens 48] [--repeats 2]
        [--read 8192] [--json FILE]

The text is this program's own source code, which the model goes on with; each length is the beginning of the next, so that it is read once.
Plain and drafted run in processes of their own, in turns. The time to read is measured from an empty cache. A drafter whose own context is
shorter rests behind it; the notices say so.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.children import Child  # noqa: E402

HERE = Path(__file__).parent


def source() -> str:
    """A long text without repetition."""
    files = sorted((ROOT / "engine").rglob("*.py"))
    return "\n\n".join(f"# {file.relative_to(ROOT)}\n\n{file.read_text(encoding='utf-8')}" for file in files if file.stat().st_size)


def beginning(lane: Child, text: str, tokens: int) -> str:
    """As much of the text as has about so many tokens, by the share that a sample has."""
    size = 2 * tokens  # fewer tokens than that, surely
    sample = lane.ask(raw=text[:size], tokens=1)["prompt_tokens"]
    return text[: size * tokens // sample]


def main() -> None:
    """Print a table, and the time to read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-t", "--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("-d", "--drafter", default="auto")
    parser.add_argument("--lengths", default="512,2048,8192,16384", type=lambda given: [int(n) for n in given.split(",")])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--read", type=int, default=8192, help="tokens whose reading is timed; 0 = none")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    context = max(*given.lengths, given.read) + given.tokens + 1024
    lanes = {}
    for name in ("none", given.drafter):
        lanes[name] = Child(HERE / "serve_specchat.py", "--target", given.target, "--drafter", name, "--context", str(context))
    said = {name: lane.listen() for name, lane in lanes.items()}
    print(f"{given.target} ({said['none']['weights']}) <- {said[given.drafter]['drafter']}, {given.tokens} tokens, T = 0\n")
    print(
        "| tokens before | plain tok/s | ms a token | drafted tok/s | ratio | tau | host ms a step, plain | drafted | KV MB | same text |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | :--- |")
    text, rows, notices = source(), [], []
    for length in given.lengths:
        prompt = beginning(lanes["none"], text, length)
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in lanes}
        for lane in lanes.values():
            lane.ask(raw=prompt, tokens=4)  # reads it
        for repeat in range(given.repeats):
            for name in list(lanes)[:: 1 if repeat % 2 == 0 else -1]:
                found[name].append(lanes[name].ask(raw=prompt, tokens=given.tokens))
        row = summary(found["none"], found[given.drafter])
        rows.append(row)
        notices += [text for answers in found.values() for answer in answers for text in answer["notices"]]
        cells = [f"{row['before']}", f"{row['plain']:.1f}", f"{1000 / row['plain']:.1f}", f"{row['drafted']:.1f}", f"{row['ratio']:.2f}"]
        cells += [f"{row['tau']:.2f}", f"{row['host']:.2f}", f"{row['host_drafted']:.2f}", f"{row['kv'] / 1e6:.0f}"]
        print("| " + " | ".join([*cells, "yes" if row["same"] else "NO"]) + " |", flush=True)
    print()
    for notice in dict.fromkeys(notices):
        print(f"- {notice}")
    if given.read:
        prompt = beginning(lanes["none"], text, given.read)
        for name, lane in lanes.items():
            lane.ask(raw="Something else stands here.", tokens=1)
            answer = lane.ask(raw=prompt, tokens=1)
            new, seconds = answer["prompt_tokens"] - answer["reused_tokens"], answer["prefill_s"]
            print(f"- {name}: {new} tokens read in {seconds:.1f} s ({new / seconds:.0f} tok/s).", flush=True)
    for lane in lanes.values():
        lane.close()
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def summary(plain: list[dict[str, Any]], drafted: list[dict[str, Any]]) -> dict[str, Any]:
    """One length."""

    def rate(answers: list[dict[str, Any]]) -> float:
        return statistics.median(answer["tokens"] / answer["seconds"] for answer in answers)

    def host(answers: list[dict[str, Any]]) -> float:
        return statistics.median(1000 * answer["other_s"] / answer["steps"] for answer in answers)

    return {
        "before": plain[0]["prompt_tokens"],
        "plain": rate(plain),
        "drafted": rate(drafted),
        "ratio": rate(drafted) / rate(plain),
        "tau": drafted[-1]["tau"],
        "host": host(plain),
        "host_drafted": host(drafted),
        "kv": plain[-1]["memory"]["kv"],
        "same": len({answer["text"] for answer in (*plain, *drafted)}) == 1,
    }


if __name__ == "__main__":
    main()
