"""specchat, transformers and llama.cpp on one machine, one model, the same prompts and the same number of threads, in one run. Markdown.

    specchat pull qwen2.5-coder-1.5b qwen2.5-coder-0.5b smollm2-135m
    python tests/benchmarks/peers.py [--tokens 96] [--repeats 2] [--prompts 2] [--sets code,questions,…]
        [--peers specchat,transformers,llama] [--llama-python PATH] [--json FILE]

Every lane has a process of its own; they take turns prompt by prompt (in changing order), so that a change of the machine's speed meets
all; only one works at a time. A rate is tokens a second of decoding at T = 0 without reading the prompt: specchat counts from the end of
reading on, the others from their first token. All begin with one GGUF file: llama.cpp computes with its numbers as they are, specchat and
transformers turn them into nf4. llama.cpp is optional: `pip install llama-cpp-python`, here or for the interpreter of --llama-python.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from app.prompts import TASKS, read  # noqa: E402
from engine.catalog import catalog, stored  # noqa: E402
from engine.catalog.hardware import probe  # noqa: E402
from tests.benchmarks.children import Child  # noqa: E402

HERE = Path(__file__).parent
PEERS = ("specchat", "transformers", "llama")


@dataclass
class Lane:
    """One way to write, and what it measured: (repeat, set) -> tokens and seconds."""

    peer: str
    name: str
    child: Child
    question: dict[str, Any]
    weights: str = ""
    about: str = ""
    seen: dict[tuple[int, str], tuple[int, float]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)

    def ask(self, repeat: int, task: str, prompt: str, tokens: int) -> None:
        """One prompt."""
        answer = self.child.ask(prompt=prompt, tokens=tokens, **self.question)
        before = self.seen.get((repeat, task), (0, 0.0))
        self.seen[repeat, task] = before[0] + answer["tokens"], before[1] + answer["seconds"]
        self.texts[prompt], self.lengths[prompt] = answer["text"], answer["prompt_tokens"]

    def rate(self, repeats: Iterable[int], tasks: Iterable[str]) -> float:
        """Tokens a second over some repeats and sets."""
        found = [self.seen[repeat, task] for repeat in repeats for task in tasks]
        seconds = sum(s for _, s in found)
        return sum(n for n, _ in found) / seconds if seconds > 0 else 0.0


def specchat_lanes(given: argparse.Namespace) -> list[Lane]:
    """Plain with both heads, and each drafter."""
    lanes = []
    ways = [("plain", "none", "auto"), ("plain, nf4 head", "none", "nf4"), ("auto", "auto", "auto")]
    ways[2:2] = [(name, name, "auto") for name in ("ngram", given.other, given.same) if name]
    for name, drafter, head in ways:
        arguments = ("--target", given.target, "--drafter", drafter, "--quant", "nf4", "--head", head)
        child = Child(HERE / "serve_specchat.py", *arguments, threads=given.threads)
        said = child.listen()
        name = f"{name} ({said['drafter']})" if drafter == "auto" else name
        lanes.append(Lane("specchat", name, child, {}, said["weights"]))
    return lanes


def transformers_lanes(given: argparse.Namespace) -> list[Lane]:
    """Plain, both assistants, prompt look-up: one process, since `generate` takes the assistant with each call."""
    arguments = ("--target", given.target, "--same", given.same, "--other", given.other)
    child = Child(HERE / "serve_transformers.py", *arguments, threads=given.threads)
    weights = child.listen()["weights"]
    names = {"plain": "plain", "look-up": "prompt look-up"}
    names |= {"same": f"assistant {given.same}"} if given.same else {}
    names |= {"other": f"assistant {given.other}"} if given.other else {}
    return [Lane("transformers", name, child, {"mode": mode}, weights) for mode, name in names.items()]


def llama_lanes(given: argparse.Namespace) -> list[Lane]:
    """Plain and prompt look-up; none where it cannot run, with one sentence."""
    python = given.llama_python or sys.executable
    path = stored.locate(catalog.load().target(given.target))
    if subprocess.run([python, "-c", "import llama_cpp"], capture_output=True, check=False).returncode:
        print("llama.cpp is left out: llama-cpp-python is not installed (see --llama-python).\n", file=sys.stderr)
        return []
    if path is None or path.suffix != ".gguf":
        print(f"llama.cpp is left out: {given.target} is no GGUF file.\n", file=sys.stderr)
        return []
    lanes = []
    for mode, name in (("plain", "plain"), ("look-up", "prompt look-up")):
        child = Child(HERE / "serve_llama.py", str(path), mode, str(given.threads), python=python, threads=given.threads)
        said = child.listen()
        lanes.append(Lane("llama", name, child, {}, said["weights"], said["about"]))
    return lanes


def run(lanes: list[Lane], given: argparse.Namespace) -> None:
    """All prompts, `repeats` times; who begins changes with every prompt."""
    for lane in lanes:
        lane.child.ask(prompt="Say hello.", tokens=16, **lane.question)  # warm-up
    turn = 0
    for repeat in range(given.repeats):
        for task in given.sets:
            for prompt in read(task)[: given.prompts]:
                turn += 1
                for lane in [*lanes[turn % len(lanes) :], *lanes[: turn % len(lanes)]]:
                    lane.ask(repeat, task, prompt.text, given.tokens)
                print(f"repeat {repeat + 1}, {task}, prompt {turn}", file=sys.stderr, flush=True)


def tables(lanes: list[Lane], given: argparse.Namespace) -> str:
    """The whole report, and the sentences that judge it."""
    repeats, sets = range(given.repeats), given.sets
    plain = {lane.peer: lane for lane in reversed(lanes) if lane.name == "plain"}

    def ratios(lane: Lane, base: Lane, tasks: Iterable[str] = sets) -> list[float]:
        return [lane.rate([r], tasks) / base.rate([r], tasks) for r in repeats]

    hardware = probe()
    out = [
        f"{given.target}, {len(sets)} sets of {given.prompts} prompts, {given.tokens} tokens, T = 0, {given.repeats} repeats in turns; "
        f"{hardware.cpu}, {given.threads} threads; {datetime.date.today().isoformat()}\n"
    ]
    others = [peer for peer in PEERS if peer in plain]
    out.append("| program | drafter | weights | tok/s | lowest – highest | " + " | ".join(f"x {peer} plain" for peer in others) + " |")
    out.append("| :--- | :--- | :--- | ---: | :--- |" + " ---: |" * len(others))
    for lane in lanes:
        each = [lane.rate([r], sets) for r in repeats]
        against = [f"{statistics.median(ratios(lane, plain[peer])):.2f}" for peer in others]
        cells = [lane.peer, lane.name, lane.weights, f"{statistics.median(each):.1f}", f"{min(each):.1f} – {max(each):.1f}", *against]
        out.append("| " + " | ".join(cells) + " |")
    out.append("\nBy set: tok/s, and the ratio to the program's own plain decoding.\n")
    out.append("| program | drafter | " + " | ".join(sets) + " |\n| :--- | :--- |" + " ---: |" * len(sets))
    for lane in lanes:
        cells = [f"{lane.rate(repeats, [t]):.1f} ({statistics.median(ratios(lane, plain[lane.peer], [t])):.2f})" for t in sets]
        out.append(f"| {lane.peer} | {lane.name} | " + " | ".join(cells) + " |")
    return "\n".join([*out, "", *verdicts(lanes, plain, given)])


def verdicts(lanes: list[Lane], plain: dict[str, Lane], given: argparse.Namespace) -> list[str]:
    """What must hold between lanes, one sentence each."""
    out, repeats = [], range(given.repeats)
    ours = [lane for lane in lanes if lane.peer == "specchat" and not lane.name.startswith("plain")]
    auto = next((lane for lane in ours if lane.name.startswith("auto")), None)
    for task in given.sets if auto is not None and len(ours) > 1 else ():
        assert auto is not None
        best = max((lane for lane in ours if lane is not auto), key=lambda lane: lane.rate(repeats, [task]))
        share = auto.rate(repeats, [task]) / best.rate(repeats, [task])
        out.append(f"- {task}: auto reaches {share:.2f} of the best single drafter, {best.name} (bar 0.95).")
    if ours:
        same = sum(lane.texts[p] == plain["specchat"].texts[p] for lane in ours for p in lane.texts)
        count = sum(len(lane.texts) for lane in ours)
        out.append(f"- {same} of {count} specchat texts are those of plain decoding, character by character.")
    out += dict.fromkeys(f"- {lane.peer} {lane.about}." for lane in lanes if lane.about)
    for lane in lanes:
        if lane.lengths != lanes[0].lengths:
            out.append(f"- {lane.peer}, {lane.name} read other prompts than {lanes[0].peer}: the chat template came out longer or shorter.")
    return out


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("--same", default="qwen2.5-coder-0.5b", help="drafter with the target's tokenizer; '' = none")
    parser.add_argument("--other", default="smollm2-135m", help="drafter with another tokenizer; '' = none")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=2, help="of each set")
    parser.add_argument("--sets", default=",".join(TASKS), type=lambda names: names.split(","))
    parser.add_argument("--peers", default=",".join(PEERS), type=lambda names: names.split(","))
    parser.add_argument("--threads", type=int, default=0, help="default: one per physical core")
    parser.add_argument("--llama-python", help="an interpreter that has llama-cpp-python")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.threads = given.threads or probe().cores
    makers = {"specchat": specchat_lanes, "transformers": transformers_lanes, "llama": llama_lanes}
    lanes = [lane for peer in PEERS if peer in given.peers for lane in makers[peer](given)]
    run(lanes, given)
    print(tables(lanes, given))
    for child in dict.fromkeys(lane.child for lane in lanes):
        child.close()
    if given.json:
        rows = [{"peer": lane.peer, "drafter": lane.name, "weights": lane.weights, "texts": lane.texts} for lane in lanes]
        for row, lane in zip(rows, lanes, strict=True):
            row["measured"] = [{"repeat": r, "set": t, "tokens": n, "seconds": s} for (r, t), (n, s) in lane.seen.items()]  # type: ignore[assignment]
        given.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
