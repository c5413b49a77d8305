"""What the chat screen costs: tokens/s with the screen in a real terminal against the same reply without one.

Interleaved pairs, each in a fresh process; the same prompt, greedy, no drafter by default. Prints the median of the ratios.
Usage: python tests/benchmarks/screen_cost.py [-t TARGET] [-d DRAFTER] [--tokens N] [--pairs N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.children import in_terminal  # noqa: E402

PROMPT = "Explain step by step how a hash table works, with a longer Python example and its test."
LIMIT_S = 600.0


def child(target: str, drafter: str, tokens: int, screen: bool, out: Path) -> None:
    """One reply in this process; writes tokens/s to a file."""
    from app.chat import ChatOptions
    from engine.catalog.catalog import load
    from engine.client import EngineClient
    from engine.protocol import Done, Generate, Load, Message, Ready, Sampling, Step
    from engine.stats import Tally

    catalog = load()
    options = ChatOptions(
        target=catalog.target(target), drafter=catalog.drafter(drafter), sampling=Sampling(temperature=0.0), max_tokens=tokens, offline=True
    )
    assert options.target is not None
    if screen:
        from app.commands import BY_NAME
        from app.tui import SpecChat

        class Once(SpecChat):
            def on_ready(self) -> None:
                self.set_interval(0.5, self.look)

            def look(self) -> None:
                chat = self.chat_screen
                if chat.loaded.ready is not None and not chat.loaded.loading and not chat.chat.turns and not chat.prompt.text:
                    chat.prompt.put(PROMPT)
                    chat.run_command(BY_NAME["send"])
                elif chat.chat.last is not None:
                    out.write_text(json.dumps({"tok_per_s": chat.meter.numbers().average}))
                    self.exit(0)

        app = Once(options)
        app.run()
        app.client.close()
        return
    client = EngineClient()
    client.send(Load(options.target, options.drafter))
    while not any(isinstance(event, Ready) for event in client.wait(1.0)):
        pass
    client.send(Generate(1, (Message("user", PROMPT),), sampling=options.sampling, max_tokens=tokens))
    tally, done = Tally(), False
    while not done:
        for event in client.wait(1.0):
            if isinstance(event, Step):
                tally.add(event)
            done = done or isinstance(event, Done)
    out.write_text(json.dumps({"tok_per_s": tally.tok_per_s}))
    client.close()


def measure(arguments: list[str], screen: bool) -> float:
    """Run one child; with a screen inside a pseudo terminal whose output is read and thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, __file__, *arguments, "--child", str(out), *(["--screen"] if screen else [])]
        if screen:
            _, shown = in_terminal(command, LIMIT_S)
            if not out.exists():
                raise SystemExit(f"The screen ended early:\n{shown.decode(errors='replace')}")
        else:
            subprocess.run(command, check=True, timeout=LIMIT_S)
        return float(json.loads(out.read_text())["tok_per_s"])


def main() -> None:
    """Measure pairs and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-t", "--target", default="qwen2.5-coder-0.5b")
    parser.add_argument("-d", "--drafter", default="none")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--child", type=Path)
    parser.add_argument("--screen", action="store_true")
    given = parser.parse_args()
    if given.child is not None:
        child(given.target, given.drafter, given.tokens, given.screen, given.child)
        return
    arguments = ["-t", given.target, "-d", given.drafter, "--tokens", str(given.tokens)]
    ratios = []
    for pair in range(given.pairs):
        rates = {screen: measure(arguments, screen) for screen in ((False, True) if pair % 2 == 0 else (True, False))}
        ratios.append(rates[True] / rates[False])
        print(
            f"pair {pair + 1}: without {rates[False]:.1f} tok/s, with the screen {rates[True]:.1f} tok/s, ratio {ratios[-1]:.3f}",
            flush=True,
        )
    print(f"median ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
