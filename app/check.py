"""`specchat check`: do two models' tokenizers go together, how well, by which method, or why not.

The facts come from a short child process (`engine.bridge.check`), since reading a tokenizer imports torch, which this one stays without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

from app.console import Ticker, emit, emit_json
from engine.catalog.progress import human
from engine.errors import EngineError
from engine.logs import log_text
from engine.words import counted

CHILD_S, LOOK_S = 600.0, 0.1
HERE = Path(__file__).parents[1]


def show(target: str, drafter: str, *, as_json: bool = False) -> int:
    """Print what was found. A refused pair is an answer, not a failure: the exit code is 0."""
    ticker = Ticker(patience_s=5.0)
    ticker.show("check", f"reading the tokenizers of {target} and {drafter}")
    try:
        found = facts(target, drafter)
    finally:
        ticker.clear()
    emit_json(found) if as_json else emit(words(target, drafter, found))
    return 0


def facts(target: str, drafter: str, stop: Event | None = None) -> dict[str, Any]:
    """All facts of a pair, with the keys of `check --json`. Takes seconds; `stop` ends it early. Raises EngineError."""
    paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-P", "-m", "engine.bridge.check", target, drafter]  # -P: the person's folder may hold an `engine` too
    try:
        out, trouble = _output(command, environment, stop or Event())
    except OSError as error:
        out, trouble = "", str(error)
    try:
        found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    except (ValueError, IndexError) as error:
        log_text(trouble)
        raise EngineError("The process that reads the tokenizers crashed.", "The details are in the log.", kind="internal") from error
    if (problem := found.get("error")) is not None:
        raise EngineError(problem["message"], problem["hint"], kind=problem["kind"], detail=problem["detail"])
    return found


def _output(command: list[str], environment: dict[str, str], stop: Event) -> tuple[str, str]:
    """What the child writes to stdout and stderr. It is killed when it takes too long or `stop` is set."""
    begun_s = time.monotonic()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace"
    ) as child:
        while True:
            try:
                return child.communicate(timeout=LOOK_S)
            except subprocess.TimeoutExpired as error:
                if stop.is_set():
                    child.kill()
                    raise EngineError("Stopped.", kind="cancelled") from None
                if time.monotonic() - begun_s > CHILD_S:
                    child.kill()
                    hint = "Try again when the machine is less busy."
                    raise EngineError("Reading the tokenizers took too long.", hint, kind="internal") from error
            except BaseException:
                child.kill()
                raise


def words(target: str, drafter: str, found: dict[str, Any]) -> str:
    """The facts for people."""
    if found.get("kind") == "heads":
        return _heads(found)
    sides = (found["target"], found["drafter"])
    table: list[tuple[str, ...]] = [("", "TARGET", "DRAFTER"), ("", Path(target).name, Path(drafter).name)]
    table.append(("tokenizer", *(side["class"] for side in sides)))
    table.append(("tokens", *(f"{side['size']:,}" for side in sides)))
    table.append(("that are text", *(f"{side['mapped']:,}" for side in sides)))
    text = _aligned(table)
    if found["intersection"] is not None:
        same = counted(found["intersection"], "drafter token")
        text += f"\n{same} {'is' if found['intersection'] == 1 else 'are'} the same bytes as a target token.\n\n"
        parts = list(found["coverage"])
        rows: list[tuple[str, ...]] = [("IN BUNDLED TEXTS", *(part.upper() for part in parts))]
        rows.append(("tokens that both have", *(f"{found['coverage'][part]:.1%}" for part in parts)))
        rows.append(("first pieces that fit", *(f"{found['pieces'][part]:.1%}" for part in parts)))
        text += _aligned(rows)
    if found["refused"] is not None:
        return text + f"\nRefused: {found['refused']}\n"
    return text + f"\nMethod: {found['method']}\n" + "".join(f"- {reason}\n" for reason in found["reasons"])


def _heads(found: dict[str, Any]) -> str:
    """Draft heads beside their target."""
    rows: list[tuple[str, ...]] = [("", "TARGET", "HEADS"), ("", found["target"], found["heads"])]
    one, other = found["sizes"]["target"], found["sizes"]["heads"] or {}
    for label, key in (("hidden size", "hidden"), ("vocabulary", "vocab"), ("layers", "layers")):
        rows.append((label, f"{one[key]:,}", f"{other[key]:,}" if key in other else "-"))
    text = _aligned(rows) + f"\n{found['values'] / 1e6:,.1f} million values, {human(found['bytes'])} on disk"
    text += f", made for {' or '.join(found['made_for'])}.\n" if found["made_for"] else ".\n"
    if found["refused"] is not None:
        return text + f"\nRefused: {found['refused']}\n"
    needs = ", ".join(f"{human(size)} in {quant}" for quant, size in found["memory"].items())
    return text + f"Memory beside the target: {needs}.\n\nMethod: {found['method']}\n" + "".join(f"- {r}\n" for r in found["reasons"])


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "".join(
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))).rstrip() + "\n"
        for row in rows
    )
