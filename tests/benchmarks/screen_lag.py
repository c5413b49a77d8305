"""How long the screen keeps a person waiting while 5,000 tokens come as fast as they can be read: prose, then one long code block.

A replayed engine feeds the real screen in a pseudo terminal, once without any pause and once with some 500 tokens/s; a task on the
same event loop measures how late it wakes up. Prints the delays' median, 99th percentile and maximum, and the most steps that waited
in the queue. Exit code 1 when a 99th percentile reaches 150 ms, or when more waited than one reply has steps.
Usage: python tests/benchmarks/screen_lag.py [--tokens N] [--columns N] [--rows N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.children import in_terminal  # noqa: E402

LIMIT_MS = 150.0
TICK_S = 0.005
WAIT_S = 300.0
PACE = 6.0  # times the 89 tokens/s of the scripted reply
SENTENCE = "the screen draws what the engine has written and never makes it wait for a frame that nobody has time to read"


def prose(tokens: int) -> str:
    """Paragraphs of some lines, a list now and then."""
    sentence = SENTENCE.split()
    words = [sentence[n % len(sentence)] for n in range(tokens)]
    parts = [" ".join(words[n : n + 60]) for n in range(0, tokens, 60)]
    return "\n\n".join(f"- {part}" if n % 5 == 4 else part for n, part in enumerate(parts))


def code(tokens: int) -> str:
    """One block that is open until the end."""
    lines = [f"    total_{n} = measure(row[{n}], limit={n % 7})  # keep" for n in range(tokens // 6)]
    return "```python\ndef report(row):\n" + "\n".join(lines) + "\n```\n"


def child(kind: str, tokens: int, speed: float | None, out: Path) -> None:
    """One reply in this process; writes what was measured to a file."""
    from app.chat import ChatOptions
    from app.commands import BY_NAME
    from app.tui import SpecChat
    from engine.catalog.specs import NGRAM
    from engine.protocol import Step
    from engine.replay import ReplayClient, Trace, scripted
    from tests.app.tui_world import BIG, Machine

    reply = scripted(prose(tokens) if kind == "prose" else code(tokens), kept=(0, 1, 4))
    steps = [event for _, event in reply if isinstance(event, Step)]
    client = ReplayClient(Trace(replies=(reply,)), speed)

    class Watched(SpecChat):
        async def watch(self) -> None:
            late_ms: list[float] = []
            most = 0
            while self.chat_screen.loaded.ready is None:
                await asyncio.sleep(0.05)
            self.chat_screen.prompt.put("Go on.")
            begun_s = time.monotonic()
            self.chat_screen.run_command(BY_NAME["send"])
            while self.chat_screen.chat.last is None or self.chat_screen.situation.generating:
                start_s = time.monotonic()
                await asyncio.sleep(TICK_S)
                late_ms.append(1000 * (time.monotonic() - start_s - TICK_S))
                most = max(most, client.waiting)
            found = {
                "late_ms": late_ms, "most": most, "steps": len(steps), "tokens": sum(step.emitted for step in steps),
                "seconds": time.monotonic() - begun_s,
            }  # fmt: skip
            out.write_text(json.dumps(found))
            self.exit(0)

        def on_ready(self) -> None:
            self.run_worker(self.watch(), exit_on_error=True)

    with tempfile.TemporaryDirectory() as folder:
        os.environ["SPECCHAT_HOME"] = folder
        machine = Machine()
        Watched(ChatOptions(target=BIG, drafter=NGRAM), client, machine).run()
        client.close()


def measure(kind: str, tokens: int, speed: float, columns: int, rows: int) -> dict[str, float]:
    """Run one child in a pseudo terminal whose output is read and thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, __file__, "--child", str(out), "--kind", kind, "--tokens", str(tokens), "--speed", str(speed)]
        _, shown = in_terminal(command, WAIT_S, columns, rows, PYTHONPATH=str(ROOT))
        if not out.exists():
            raise SystemExit(f"The screen ended early:\n{shown.decode(errors='replace')}")
        found: dict[str, float] = json.loads(out.read_text())
        return found


def main() -> None:
    """Measure both kinds and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=5000)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--rows", type=int, default=30)
    parser.add_argument("--speed", type=float, default=0.0, help="of the child: times 89 tokens/s; 0 = no pauses")
    parser.add_argument("--kind", choices=("prose", "code"))
    parser.add_argument("--child", type=Path)
    given = parser.parse_args()
    if given.child is not None:
        child(given.kind, given.tokens, given.speed or None, given.child)
        return
    bad = False
    for kind, speed in (("prose", 0.0), ("code", 0.0), ("prose", PACE), ("code", PACE)):
        found = measure(kind, given.tokens, speed, given.columns, given.rows)
        late = sorted(found["late_ms"])  # type: ignore[call-overload]
        p99 = late[int(len(late) * 0.99)]
        bad |= p99 >= LIMIT_MS or found["most"] > found["steps"] + 8
        print(
            f"{kind}{' with pauses' if speed else ''}: {found['tokens']:,} tokens in {found['seconds']:.1f} s; "
            f"late by {statistics.median(late):.1f} ms (median), {p99:.1f} ms (99 %), {late[-1]:.1f} ms (most); "
            f"at most {found['most']:,} of {found['steps']:,} steps waited",
            flush=True,
        )
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
