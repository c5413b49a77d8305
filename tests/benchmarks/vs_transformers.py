"""specchat against transformers in one run: same weights, same prompts, T = 0, decoding speed without reading the prompt.

    specchat pull qwen2.5-coder-1.5b qwen2.5-coder-0.5b
    python tests/benchmarks/vs_transformers.py [--tokens 96] [--repeat 2] [--target NAME] [--drafter NAME] [--json FILE]

Each library runs in a process of its own (a second pool of compute threads in one process slows both); the two take turns prompt by
prompt, so that a change of the machine's speed meets both. transformers reads the GGUF once, saves bf16 safetensors under the cache and
loads those with its bitsandbytes nf4 quantizer; a rate is (tokens - 1) / (time for all - time for one token).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.children import Child  # noqa: E402

CHAT = [
    "Write a Python function that merges two sorted lists into one sorted list without using sort(). Add a docstring.",
    "Why is the sky blue, and why is it red in the evening? Answer in one paragraph.",
    "Write a small command line program in Python that counts the words in a text file and prints the ten most frequent ones.",
    "List five things to check before buying a used bicycle, with one sentence for each.",
]
REWRITE = [
    "Rename the variable x to total in this function and return the whole function:\n\n```python\ndef average(values):\n    x = 0\n"
    "    count = 0\n    for value in values:\n        x = x + value\n        count = count + 1\n    if count == 0:\n        return 0\n"
    "    return x / count\n```",
    'Return this JSON with every price raised by 10 percent and everything else the same:\n\n[{"item": "lamp", "price": 40, "stock": 12},'
    ' {"item": "chair", "price": 70, "stock": 3}, {"item": "table", "price": 120, "stock": 5}, {"item": "shelf", "price": 90, "stock": 8}]',
]


# --- specchat --------------------------------------------------------------------------------------------------------


def serve_specchat(target: str, drafter: str) -> None:
    """Modes: plain, plain-nf4-head, model, ngram."""
    from engine.catalog import catalog
    from engine.client import EngineClient, events
    from engine.protocol import Done, Failed, Generate, Load, LoadOptions, Message, Ready, Sampling, Step, SwapDrafter
    from engine.stats import Tally

    names = catalog.load()
    client = EngineClient()
    stream = events(client)
    loaded = ("", "")

    def until(kind: type) -> Any:
        for event in stream:
            if isinstance(event, Failed):
                raise SystemExit(f"specchat: {event.message} {event.hint}")
            if isinstance(event, Step):
                tally.add(event)
            if isinstance(event, kind):
                return event

    tally = Tally()
    for line in sys.stdin:
        question = json.loads(line)
        mode = question["mode"]
        head = "nf4" if mode == "plain-nf4-head" else "auto"
        wanted = {"model": drafter, "ngram": "ngram"}.get(mode, "none")
        load_s = 0.0
        if loaded[0] != head:
            client.send(Load(names.target(target), names.drafter(wanted), LoadOptions(quant="nf4", head=head, context=4096, settle=True)))
            load_s = until(Ready).load_s
        elif loaded[1] != wanted:
            client.send(SwapDrafter(names.drafter(wanted)))
            until(Ready)
        loaded = (head, wanted)
        tally = Tally()
        client.send(
            Generate(
                1,
                (Message("user", question["prompt"]),),
                sampling=Sampling(temperature=0.0, repeat_penalty=1.0),
                max_tokens=question["tokens"],
            )
        )
        done = until(Done)
        answer = {"rate": (len(done.token_ids) - 1) / tally.decode_s, "tau": tally.tau, "text": done.text, "load_s": load_s}
        print(json.dumps(answer), flush=True)
    client.close()


# --- transformers ----------------------------------------------------------------------------------------------------


def as_safetensors(name: str) -> Path:
    """The model as bf16 safetensors, made once from its GGUF by transformers' own reader."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from engine import places
    from engine.catalog import catalog, hub

    path = hub.locate(catalog.load().target(name))
    if path is None:
        raise SystemExit(f"{name} is not on this machine. Run: specchat pull {name}")
    if path.is_dir():
        return path
    folder = places.cache_dir() / "benchmarks" / name
    if not (folder / "config.json").exists():
        import torch

        dense = GgufConfig(dequantize=True)
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.bfloat16, quantization_config=dense)
        model.config.quantization_config = None
        AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)
        model.save_pretrained(folder)
    return folder


def serve_transformers(target: str, drafter: str) -> None:
    """Modes: plain, model (assisted generation), ngram (prompt look-up)."""
    import os

    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

    from engine.machine import use_physical_cores

    use_physical_cores()

    def load(name: str) -> Any:
        quantizer = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
        where = as_safetensors(name)
        return AutoModelForCausalLM.from_pretrained(where, dtype=torch.bfloat16, quantization_config=quantizer, device_map="cpu").eval()

    tokenizer = AutoTokenizer.from_pretrained(as_safetensors(target))
    model = load(target)
    assistant = None
    for line in sys.stdin:
        question = json.loads(line)
        extra: dict[str, Any] = {}
        if question["mode"] == "model":
            assistant = assistant or load(drafter)
            extra = {"assistant_model": assistant}
        elif question["mode"] == "ngram":
            extra = {"prompt_lookup_num_tokens": 3}
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": question["prompt"]}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        took = {}
        for tokens in (1, question["tokens"]):
            begun = time.perf_counter()
            out = model.generate(**ids, do_sample=False, repetition_penalty=1.0, max_new_tokens=tokens, **extra)
            took[tokens] = time.perf_counter() - begun
        new = out[0, ids["input_ids"].shape[1] :]
        rate = (len(new) - 1) / (took[question["tokens"]] - took[1])
        print(json.dumps({"rate": rate, "text": tokenizer.decode(new, skip_special_tokens=True)}), flush=True)


# --- the run ---------------------------------------------------------------------------------------------------------

PAIRS = [  # name, specchat's mode, transformers' mode, prompts, the bar
    ("plain, int8 head", "plain", "plain", CHAT, 1.7),
    ("plain, nf4 head", "plain-nf4-head", "plain", CHAT, 2.0),
    ("small model drafts", "model", "model", CHAT, 2.0),
    ("look-up, chat", "ngram", "ngram", CHAT, 1.5),
    ("look-up, rewriting", "ngram", "ngram", REWRITE, 1.5),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", choices=["specchat", "transformers"], help=argparse.SUPPRESS)
    parser.add_argument("--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("--drafter", default="qwen2.5-coder-0.5b")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.child:
        (serve_specchat if args.child == "specchat" else serve_transformers)(args.target, args.drafter)
        return
    names = ("--target", args.target, "--drafter", args.drafter)
    ours, theirs = (Child(__file__, "--child", kind, *names) for kind in ("specchat", "transformers"))
    rows = []
    print(f"{args.target} <- {args.drafter}, nf4, {args.tokens} tokens, T = 0; tok/s, medians; the ratio is the median of pairs\n")
    print(f"| {'case':20} | specchat | transformers | ratio | range       | bar  | tau  |")
    print(f"| {'-' * 20} | -------: | -----------: | ----: | ----------: | ---: | ---: |")
    for name, mine, other, prompts, bar in PAIRS:
        ours.ask(mode=mine, prompt=prompts[0], tokens=16)  # warm-up, and loading
        theirs.ask(mode=other, prompt=prompts[0], tokens=16)
        pairs = []
        for _ in range(args.repeat):
            for prompt in prompts:
                a = ours.ask(mode=mine, prompt=prompt, tokens=args.tokens)
                b = theirs.ask(mode=other, prompt=prompt, tokens=args.tokens)
                pairs.append((a["rate"], b["rate"], a["tau"], a["text"][:60] == b["text"][:60]))
        ratios = [a / b for a, b, _, _ in pairs]
        row = {
            "case": name,
            "specchat": statistics.median(a for a, _, _, _ in pairs),
            "transformers": statistics.median(b for _, b, _, _ in pairs),
            "ratio": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
            "bar": bar,
            "tau": statistics.mean(t for _, _, t, _ in pairs),
            "same_start": sum(same for *_, same in pairs) / len(pairs),
        }
        rows.append(row)
        print(
            f"| {name:20} | {row['specchat']:8.1f} | {row['transformers']:12.1f} | {row['ratio']:5.2f} "
            f"| {row['lowest']:4.2f} – {row['highest']:4.2f} | {bar:4.1f} | {row['tau']:4.2f} |",
            flush=True,
        )
    ours.close()
    theirs.close()
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
