"""Record the trace that `specchat --demo` plays, from real models on this machine: python docs/record_demo.py [-t T] [-d D …] [-o FILE].

Every prompt of the set "mixed", one follow-up question and the warm-up of the bench are answered once with each drafter, greedily.
The times in the trace are those of this machine, so it should be quiet. The texts of all drafters must be equal; the script says so.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields, is_dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from app.bench import WARM_UP_PROMPT, WARM_UP_TOKENS
from app.console import Interrupt
from app.driver import Driver
from app.prompts import read
from app.seeds import reply_seed
from engine.catalog import catalog
from engine.catalog.specs import ModelSpec
from engine.client import EngineClient
from engine.protocol import Done, Generate, Load, LoadOptions, Message, Ready, Sampling, SwapDrafter
from engine.record import Recorder
from engine.trace import Take, Trace, load_trace, save_trace

FOLLOW_UP = "Add type hints to the function, and change nothing else."
OUT = Path(__file__).parents[1] / "app" / "demo.json.gz"


def main() -> None:
    """Load, answer everything with each drafter, write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-t", "--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("-d", "--drafter", action="append", help="repeatable; default: ngram, smollm2-135m and qwen2.5-coder-0.5b")
    parser.add_argument("-o", "--out", type=Path, default=OUT)
    parser.add_argument("--faster", type=float, default=1.0, metavar="N", help="divide all times by this, where the machine was not quiet")
    parser.add_argument("--tokens", type=int, default=160, help="longest reply")
    given = parser.parse_args()
    names = catalog.load()
    drafters = [names.drafter(name) for name in ("none", *(given.drafter or ("ngram", "smollm2-135m", "qwen2.5-coder-0.5b")))]
    prompts = [prompt.text for prompt in read("mixed")]
    recorder = Recorder(EngineClient())
    driver = Driver(recorder, Interrupt(), lambda text: print("note:", text))
    load = LoadOptions(context=4096)
    driver.load(Load(names.target(given.target), drafters[-1], load))
    opened = tuple(recorder.answers[-1][1])
    takes, numbers = [], count(1)
    for drafter in drafters:
        ready = driver.load(SwapDrafter(drafter))
        takes.append(Take("", drafter.name, tuple(recorder.answers[-1][1])))

        def answer(prompt: str, turn: int, tokens: int, *before: Message, drafter: ModelSpec = drafter, ready: Ready = ready) -> str:
            messages = (*before, Message("user", prompt))
            command = Generate(next(numbers), messages, sampling=Sampling(0.0), seed=reply_seed(0, turn, 0), max_tokens=tokens)
            got = driver.reply(command, ready)
            takes.append(Take(prompt, drafter.name, tuple(recorder.answers[-1][1])))
            print(f"{drafter.name}: {got.stats.tok_per_s:.1f} tok/s, tau {got.stats.tau:.2f}, {prompt[:50]!r}", flush=True)
            return got.done.text

        answer(WARM_UP_PROMPT, 0, WARM_UP_TOKENS)
        first = answer(prompts[0], 0, given.tokens)
        answer(FOLLOW_UP, 1, given.tokens, Message("user", prompts[0]), Message("assistant", first))
        for turn, prompt in enumerate(prompts[1:], start=1):
            answer(prompt, turn, given.tokens)
    recorder.close()
    takes = sorted(takes, key=lambda take: take.prompt == WARM_UP_PROMPT)  # the demo offers the first prompts first
    trace = rounded(Trace(load=opened, takes=tuple(takes)), given.faster)
    for prompt in trace.prompts:
        texts = {event.text for take in trace.takes if take.prompt == prompt for _, event in take.timed if isinstance(event, Done)}
        assert len(texts) == 1, f"the drafters wrote different texts: {prompt!r}"
    save_trace(trace, given.out)
    assert load_trace(given.out) == trace
    print(f"{given.out}: {given.out.stat().st_size / 1000:.0f} kB, {len(takes)} recordings, equal texts with every drafter")


def rounded(value: Any, faster: float = 1.0) -> Any:
    """Times divided by `faster`, and to a hundredth of a millisecond: the file gets much smaller."""
    if isinstance(value, Sampling):
        return value
    if isinstance(value, tuple):
        return tuple(rounded(item, faster) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: rounded(getattr(value, field.name), faster) for field in fields(value)})
    return round(value / faster, 5) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
