"""How soon one can begin: window on the screen, second load, first token and reading speed against transformers, memory. Markdown.

    specchat pull qwen2.5-coder-1.5b
    python tests/benchmarks/startup.py [-t TARGET] [--repeats 5] [--lengths 64,512,2048] [--peers specchat,transformers] [--json FILE]

The window is a real one: the program in a pseudo terminal, from its start to the first frame that shows where to write. A load is timed in
a process that has imported torch, once at its start and once more after everything was freed; both map weights that were packed before. The
first token is timed from Enter; reading speed is that of the prompt until then. Peak is the most memory that a process ever
held, mapped weights included; its bar is packed weights x 1.25 + keys and values + 600 MB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.children import Child, in_terminal  # noqa: E402
from tests.benchmarks.context_growth import source  # noqa: E402

HERE = Path(__file__).parent
START = [sys.executable, "-c", "from app.cli import main; main()"]
SPARE = 600e6
WINDOW_S, LOAD_S = 0.5, 2.0


def drawn(mark: bytes) -> Callable[[bytes], bool]:
    """Whether a frame that shows a text has come."""
    return lambda shown: mark in shown


def window(arguments: list[str], mark: str, repeats: int) -> list[float]:
    """Seconds to the first frame, after a start that fills the caches of the disk."""
    took = []
    for _ in range(repeats + 1):
        seconds, shown = in_terminal([*START, *arguments], 60.0, until=drawn(mark.encode()), PYTHONPATH=str(ROOT))
        if mark.encode() not in shown:
            raise SystemExit(f"No window came:\n{shown.decode(errors='replace')}")
        took.append(seconds)
    return took[1:]


def texts(lengths: list[int], repeats: int) -> list[tuple[int, list[str]]]:
    """For each length, questions of about so many tokens that share no beginning."""
    text = source()
    out = []
    for length in lengths:
        size = 3 * length
        out.append((length, [f"{n}. What does this do?\n\n{text[n * size : (n + 1) * size]}" for n in range(repeats + 1)]))
    return out


def first_tokens(lanes: dict[str, Child], lengths: list[int], repeats: int) -> list[dict[str, Any]]:
    """Seconds to the first token, and tokens read a second, by length and lane."""
    rows = []
    for length, prompts in texts(lengths, repeats):
        found = [[lane.ask(prompt=prompt, tokens=2) for lane in lanes.values()] for prompt in prompts][1:]  # the first warms up
        for name, answers in zip(lanes, zip(*found, strict=True), strict=True):
            read = [(a["prompt_tokens"] - a.get("reused_tokens", 0)) / a["first_s"] for a in answers]
            row = {"length": length, "lane": name, "tokens": statistics.median(a["prompt_tokens"] for a in answers)}
            row |= {"ttft_s": statistics.median(a["first_s"] for a in answers)}
            row |= {"read": statistics.median(read), "peak": answers[-1]["peak"]}
            row |= {"memory": answers[-1].get("memory")}
            rows.append(row)
            print(f"| {name} | {row['tokens']:.0f} | {row['ttft_s']:.2f} | {row['read']:.0f} |", flush=True)
    return rows


def memory(rows: list[dict[str, Any]], at_load: int, packed: int) -> str:
    """The peak of specchat's process beside its bar."""
    last = [row for row in rows if row["lane"] == "specchat"][-1]
    bar = 1.25 * packed + last["memory"]["kv"] + SPARE
    parts = [f"Memory: packed weights {packed / 1e6:.0f} MB", f"keys and values {last['memory']['kv'] / 1e6:.0f} MB"]
    parts += [f"peak {at_load / 1e6:.0f} MB when loaded", f"{last['peak'] / 1e6:.0f} MB at the end", f"bar {bar / 1e6:.0f} MB"]
    return f"{', '.join(parts)}: {'held' if last['peak'] <= bar else 'MISSED'}."


def main() -> None:
    """Print what was measured and whether it is within bounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-t", "--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--lengths", default="64,512,2048", type=lambda given: [int(n) for n in given.split(",")])
    parser.add_argument("--peers", default="specchat,transformers", type=lambda names: names.split(","))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    out: dict[str, Any] = {}
    chat = ["-t", given.target, "-d", "none", "--offline"]
    starts = (("--demo", ["--demo"], "nter asks"), (given.target, chat, "sk something"))  # the cursor is on the first letter
    for name, arguments, mark in starts:
        took = window(arguments, mark, given.repeats)
        out[f"window {name}"] = took
        print(f"Window, {name}: {statistics.median(took):.2f} s ({min(took):.2f} – {max(took):.2f}; bar {WINDOW_S}).", flush=True)
    engine = (HERE / "serve_specchat.py", "--target", given.target, "--quant", "nf4")
    packing = Child(*engine)  # from here on the packed weights are on disk
    packing.listen()
    packing.close()
    lanes = {"specchat": Child(*engine, "--load-twice")}
    said = lanes["specchat"].listen()
    out["load"] = said
    times = f"importing {said['import_s']:.2f} s; then {said['load_s']:.2f} s, and {said['again_s']:.2f} s once more (bar {LOAD_S})"
    print(f"Load of {given.target} ({said['weights']}): {times}.\n", flush=True)
    if "transformers" in given.peers:
        lanes["transformers"] = Child(HERE / "serve_transformers.py", "--target", given.target)
        lanes["transformers"].listen()
    print("| program | prompt tokens | first token, s | read, tok/s |\n| :--- | ---: | ---: | ---: |")
    out["first"] = first_tokens(lanes, given.lengths, given.repeats)
    print("\n" + memory(out["first"], said["peak"], said["target_bytes"]))
    for lane in lanes.values():
        lane.close()
    if given.json:
        given.json.write_text(json.dumps(out, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
