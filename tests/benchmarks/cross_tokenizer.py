"""Drafters with another tokenizer: how well they draft, and whether they pay. Same weights, same prompts, one run.

    specchat pull qwen2.5-coder-1.5b smollm2-135m
    python tests/benchmarks/cross_tokenizer.py [quality | speed | all] [--tokens 96] [--prompts N] [--target NAME] [--drafter NAME]
        [--json FILE]

quality: at T = 0 the drafted tokens that were kept, beside those that an oracle would keep. The oracle never loses the thread: it reads the
target's own text in its own canonical tokens and is asked at each of them (teacher forcing); of every draft it keeps the target tokens up
to the first that it would have written otherwise, cut at the length of the draft that was made. At T = 0.7, top-p 0.9, kept % by method.

speed: specchat plain, specchat with the drafter, and transformers' generate with an assistant of another tokenizer, each in a process of
its own, prompt by prompt in turns; tok/s of decoding without the prompt. specchat's two are asked there and back (plain, drafted, drafted,
plain), and the quicker answer of each counts: what else the machine does can only slow an answer. A set's ratio is that of the summed
times for the same texts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.children import Child  # noqa: E402

SPECCHAT = Path(__file__).with_name("serve_specchat.py")
SETS = ("code", "questions", "rewriting", "story", "multilingual")
BARS = {0.0: 1.10, 0.7: 1.0}  # on the mean of code and questions
NEVER_BELOW = 0.97
TRANSFORMERS_BAR = 3.5


def serve_transformers(target: str, drafter: str) -> None:
    """Assisted generation with two tokenizers, nf4."""
    import os

    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, set_seed

    from engine.machine import use_physical_cores
    from tests.benchmarks.vs_transformers import as_safetensors

    use_physical_cores()

    def load(name: str) -> Any:
        quantizer = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
        where = as_safetensors(name)
        return AutoModelForCausalLM.from_pretrained(where, dtype=torch.bfloat16, quantization_config=quantizer, device_map="cpu").eval()

    tokenizer, other = AutoTokenizer.from_pretrained(as_safetensors(target)), AutoTokenizer.from_pretrained(as_safetensors(drafter))
    model, assistant = load(target), load(drafter)
    for line in sys.stdin:
        question = json.loads(line)
        messages = [{"role": "user", "content": question["prompt"]}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        warm = question["temperature"] > 0
        how: dict[str, Any] = {"do_sample": warm} | ({"temperature": question["temperature"], "top_p": 0.9, "top_k": 0} if warm else {})
        took, new = {}, 0
        for tokens in (1, question["tokens"]):
            set_seed(7)
            begun = time.perf_counter()
            out = model.generate(
                **ids, **how, repetition_penalty=1.0, max_new_tokens=tokens, assistant_model=assistant, tokenizer=tokenizer,
                assistant_tokenizer=other,
            )  # fmt: skip
            took[tokens] = time.perf_counter() - begun
            new = len(out[0]) - ids["input_ids"].shape[1]
        print(json.dumps({"tokens": new - 1, "seconds": took[question["tokens"]] - took[1]}), flush=True)


def speed(target: str, drafter: str, tokens: int, most: int) -> dict[str, Any]:
    """Ratios by prompt set and temperature."""
    from app.prompts import read

    theirs = _warm(Child(__file__, "--child", "--target", target, "--drafter", drafter))
    lanes = {"plain": _specchat(target, "none"), "drafted": _specchat(target, drafter)}  # one after the other: loading times the machine
    out: dict[str, Any] = {"sets": []}
    print(f"\n{target} <- {drafter}, nf4, {tokens} tokens; tok/s by set\n")
    print("| T   | set          | method | plain | drafted | ratio | kept % | tau  | bridge ms | same text | transformers | ratio |")
    print("| :-- | :----------- | :----- | ----: | ------: | ----: | -----: | ---: | --------: | :-------- | -----------: | ----: |")
    for temperature in BARS:
        for name in SETS:
            prompts = [prompt.text for prompt in read(name)[:most]]
            question = {"tokens": tokens, "temperature": temperature}
            found: dict[str, list[dict[str, Any]]] = {key: [] for key in (*lanes, "transformers")}
            for prompt in prompts:
                asked: dict[str, list[dict[str, Any]]] = {key: [] for key in lanes}
                for key in (*lanes, *reversed(lanes)):
                    asked[key].append(lanes[key].ask(prompt=prompt, **question))
                for key, answers in asked.items():
                    found[key].append(min(answers, key=lambda answer: answer["seconds"]))
                if name in ("code", "questions"):
                    found["transformers"].append(theirs.ask(prompt=prompt, **question))
            row = {"temperature": temperature, "set": name, "method": found["drafted"][0]["method"]}
            row |= {key: _rate(answers) for key, answers in found.items()}
            row |= {"ratio": row["drafted"] / row["plain"], "same": all(_texts(found["plain"], found["drafted"]))}
            row |= {key: sum(a[key] for a in found["drafted"]) / len(prompts) for key in ("kept", "tau")}
            row["bridge_ms"] = 1000 * sum(a["bridge_s"] / max(a["steps"], 1) for a in found["drafted"]) / len(prompts)
            row["against"] = row["drafted"] / row["transformers"] if row["transformers"] else None
            row["notes"] = [note for answer in found["drafted"] for note in answer["notices"]]
            out["sets"].append(row)
            other = f"{row['transformers']:12.1f} | {row['against']:5.2f}" if row["against"] else f"{'–':>12} | {'–':>5}"
            print(
                f"| {temperature:<3} | {name:12} | {row['method']:6} | {row['plain']:5.1f} | {row['drafted']:7.1f} | {row['ratio']:5.2f} "
                f"| {100 * row['kept']:6.1f} | {row['tau']:4.2f} | {row['bridge_ms']:9.2f} | {row['same']!s:9} | {other} |",
                flush=True,
            )
    for lane in (*lanes.values(), theirs):
        lane.close()
    print()
    for temperature, bar in BARS.items():
        rows = [row for row in out["sets"] if row["temperature"] == temperature]
        both = [row for row in rows if row["against"]]
        mean = sum(row["ratio"] for row in both) / len(both)
        out[f"mean, T = {temperature}"] = mean
        lowest = min(row["ratio"] for row in rows)
        against = sum(row["against"] for row in both) / len(both)
        print(f"T = {temperature}: mean of code and questions {mean:.2f} (bar {bar}), lowest set {lowest:.2f} (bar {NEVER_BELOW})")
        print(f"         against transformers {against:.2f} (bar {TRANSFORMERS_BAR})")
    return out


def _specchat(target: str, drafter: str) -> Child:
    lane = Child(SPECCHAT, "--target", target, "--drafter", drafter, "--quant", "nf4")
    lane.listen()  # what was loaded
    return _warm(lane)


def _warm(lane: Child) -> Child:
    """A lane that has answered once."""
    lane.ask(prompt="Say hello.", tokens=16, temperature=0.0)
    return lane


def _rate(answers: list[dict[str, Any]]) -> float:
    seconds = sum(answer["seconds"] for answer in answers)
    return sum(answer["tokens"] for answer in answers) / seconds if seconds > 0 else 0.0


def _texts(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[bool]:
    return [a["text"] == b["text"] for a, b in zip(one, other, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="all", choices=["quality", "speed", "all"])
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("--drafter", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--prompts", type=int, default=4, help="of each set")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.child:
        serve_transformers(args.target, args.drafter)
        return
    out: dict[str, Any] = {}
    if args.what in ("speed", "all"):
        out["speed"] = speed(args.target, args.drafter, args.tokens, args.prompts)
    if args.what in ("quality", "all"):
        from tests.benchmarks.cross_quality import quality

        out["quality"] = quality(args.target, args.drafter, args.tokens, args.prompts)
    if args.json:
        args.json.write_text(json.dumps(out, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
