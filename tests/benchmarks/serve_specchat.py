"""specchat as a lane of a benchmark: the real engine behind its own face, one JSON question a line, one JSON answer.

    python tests/benchmarks/serve_specchat.py --target NAME [--drafter NAME] [--quant Q] [--head H] [--context N] [--load-twice]

The first line out says what was loaded. Questions: {"prompt" or "raw": text, "tokens": N, "temperature": T, "k": N or null}.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from engine.catalog import catalog  # noqa: E402
from engine.client import Outbox, Queue, Stopper, ThreadClient, events  # noqa: E402
from engine.protocol import (  # noqa: E402
    Done,
    Event,
    Failed,
    Generate,
    Load,
    LoadOptions,
    Message,
    Notice,
    Ready,
    Sampling,
    Step,
    Unload,
    Unloaded,
)
from engine.stats import Tally  # noqa: E402
from tests.benchmarks.children import peak_bytes  # noqa: E402

if TYPE_CHECKING:
    from engine.speculation.control import Controller
    from engine.thread import Engine


class Lane:
    """One engine, its target and drafter loaded."""

    def __init__(self, load: Load) -> None:
        self._engine: list[Engine] = []
        self.client = ThreadClient(self._serve, "specchat-engine")
        self._stream = events(self.client)
        self._load = load
        self.ready = self.load()

    def _serve(self, commands: Queue, outbox: Outbox, stopper: Stopper) -> None:
        from engine.thread import Engine

        self._engine.append(Engine(commands, outbox, stopper))
        self._engine[0].run()

    def load(self) -> Ready:
        """Load everything (again)."""
        self.client.send(self._load)
        return next(event for event in self._events() if isinstance(event, Ready))

    def unload(self) -> None:
        """Free everything."""
        self.client.send(Unload())
        next(event for event in self._events() if isinstance(event, Unloaded))

    def _events(self) -> Iterator[Event]:
        """What the engine says; the process ends where it has failed."""
        for event in self._stream:
            if isinstance(event, Failed):
                raise SystemExit(f"specchat: {event.message} {event.hint}")
            yield event

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """One reply, with everything that was measured."""
        temperature = question.get("temperature", 0.0)
        command = Generate(
            1,
            (Message("user", question["prompt"]),) if "prompt" in question else (),
            raw=question.get("raw"),
            sampling=Sampling(temperature, 0.9 if temperature else 1.0, 0, 0.0, question.get("penalty", 1.0)),
            seed=7,
            max_tokens=question["tokens"],
            k=question.get("k"),
        )
        begun = time.perf_counter()
        self.client.send(command)
        seen: list[Event] = []
        first_s = 0.0
        for event in self._events():
            seen.append(event)
            if not first_s and isinstance(event, Step) and event.emitted:
                first_s = time.perf_counter() - begun
            if isinstance(event, Done):
                break
        done = seen[-1]
        assert isinstance(done, Done)
        steps = [event for event in seen if isinstance(event, Step)]
        tally = Tally()
        for step in steps:
            tally.add(step)
        return {
            "tokens": len(done.token_ids),
            "seconds": tally.decode_s,
            "text": done.text,
            "prompt_tokens": done.prompt_tokens,
            "reused_tokens": done.reused_tokens,
            "prefill_s": done.prefill_s,
            "first_s": first_s,
            "steps": tally.steps,
            "tau": tally.tau,
            "kept": tally.kept,
            "drafted_steps": sum(step.drafted > 0 for step in steps),
            "draft_s": tally.draft_s,
            "bridge_s": tally.bridge_s,
            "verify_s": tally.verify_s,
            "other_s": tally.other_s,
            "depths": dict(Counter(step.drafted for step in steps)),
            "plain_s": done.plain_s,
            "method": done.method,
            "drafter": done.drafter,
            "notices": [event.text for event in seen if isinstance(event, Notice)],
            "sources": describe(self.control),
            "memory": {"target": done.memory.target, "drafter": done.memory.drafter, "kv": done.memory.kv},
            "peak": peak_bytes(),
        }

    @property
    def control(self) -> Controller:
        """The controller; the engine waits while it is looked at."""
        session = self._engine[0]._session
        assert session is not None
        return session.control


def describe(control: Controller) -> list[str]:
    """What the controller believes of each source, one sentence each."""
    rows = ", ".join(f"{n} {1000 * control.verify.at(n):.1f}" for n in (1, 2, 3, 4, 6, 8))
    out = [f"a pass by rows in ms: {rows}; the host {1000 * control.other.at(0):.2f}"] if control.verify.known else []
    for name, source in sorted(control.sources.items()):
        if not source.steps:
            continue
        k, gain = control.best(name)
        chances = ", ".join(f"{chance:.2f}" for chance in source.survivals(min(k + 1, 5)))
        out.append(
            f"{name}: {'on' if source.on else 'off'}, {source.steps} drafts so far, best length {k} (expected {gain:.2f}x), "
            f"kept by place {chances}, drafting {k} takes {1000 * source.draft.at(k):.1f} ms"
        )
    return out


def main() -> None:
    """Answer questions until there are no more."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("--drafter", default="none")
    parser.add_argument("--quant", default="auto")
    parser.add_argument("--head", default="auto")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--load-twice", action="store_true")
    given = parser.parse_args()
    names = catalog.load()
    options = LoadOptions(quant=given.quant, head=given.head, context=given.context, settle=not given.load_twice)
    lane = Lane(Load(names.target(given.target), names.drafter(given.drafter), options))
    said: dict[str, Any] = {"load_s": lane.ready.load_s, "import_s": lane.ready.import_s, "peak": peak_bytes()}
    if given.load_twice:
        lane.unload()
        lane.ready = lane.load()
        said["again_s"] = lane.ready.load_s
    ready = lane.ready
    said |= {"drafter": ready.drafter, "method": ready.method, "notes": ready.notes, "target_bytes": ready.memory.target}
    said |= {"weights": f"{ready.quant}, head {ready.head}", "draft_weights": ready.draft_quant, "exact": ready.exact}
    print(json.dumps(said), flush=True)
    for line in sys.stdin:
        print(json.dumps(lane.ask(json.loads(line))), flush=True)
    lane.client.close()


if __name__ == "__main__":
    main()
