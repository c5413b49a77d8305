"""A trace: what an engine answered, with times; written by hand (`scripted`), recorded, and stored as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from engine.protocol import (
    Done,
    Event,
    Failed,
    FinishReason,
    Loading,
    Memory,
    Notice,
    Origin,
    Prefill,
    Ready,
    Sampling,
    Segment,
    Step,
    Unloaded,
)

Timed = tuple[float, Event]  # seconds since the command was taken up
EVENTS: dict[str, Any] = {cls.__name__: cls for cls in (Loading, Ready, Unloaded, Prefill, Step, Notice, Done, Failed)}
SAMPLING = Sampling(temperature=0.7, top_p=0.95, top_k=0, min_p=0.0, repeat_penalty=1.0)
MEMORY = Memory(target=900_000_000, kv=50_000_000)
READY = Ready("target", "none", "none", "cpu", "nf4", "int8", "nf4", 8192, SAMPLING, True, MEMORY)
DONE = Done(0, "stop", "", (), None, 0, 0, 0, 0.0, SAMPLING, None, MEMORY)


@dataclass(frozen=True, slots=True)
class Trace:
    """What is answered to each command."""

    load: tuple[Timed, ...] = ((0.0, READY),)
    swap: tuple[Timed, ...] = ((0.0, READY),)
    replies: tuple[tuple[Timed, ...], ...] = ()


def scripted(
    text: str,
    *,
    depth: int = 4,
    kept: Sequence[int] = (4, 1, 3, 0, 2),
    step_s: float = 0.03,
    prompt_tokens: int = 40,
    reused: int = 0,
    prefill_s: float = 0.2,
    plain_s: float | None = 0.03,
    finish_reason: FinishReason = "stop",
) -> tuple[Timed, ...]:
    """A reply out of a text: words are tokens, each step drafts `depth` and keeps the next number of `kept`."""
    words = re.findall(r"\s*\S+|\s+$", text)
    timed: list[Timed] = [
        (prefill_s * part, Prefill(0, reused + int((prompt_tokens - reused) * part), prompt_tokens, reused)) for part in (0.0, 0.5, 1.0)
    ]
    start, index = 0, 0
    stop = finish_reason == "stop"
    while start < len(words) + stop:
        keep = min(kept[index % len(kept)], depth)
        chunk, index = words[start : start + keep + 1], index + 1
        own: Origin = "plain" if depth == 0 else "bonus" if keep == depth else "correction"
        segments = tuple(
            Segment(word, "kept" if i < keep else own, (start + i,), i + 1 if i < keep else 0, index) for i, word in enumerate(chunk)
        )
        whole = 0.001 + step_s
        draft_s, verify_s = (step_s * 0.25, step_s * 0.7) if depth else (0.0, step_s * 0.95)
        other_s = whole - draft_s - verify_s
        step = Step(0, index, segments, len(chunk), depth, min(keep, len(chunk)), depth, draft_s, verify_s, 0.0, other_s, whole * index)
        timed.append((prefill_s + step.at_s, step))
        start += keep + 1
    done = replace(
        DONE,
        finish_reason=finish_reason,
        text="".join(words),
        token_ids=tuple(range(len(words))),
        stop_id=2 if stop else None,
        prompt_tokens=prompt_tokens,
        reused_tokens=reused,
        prefill_s=prefill_s,
        plain_s=plain_s,
    )
    return (*timed, (timed[-1][0], done))


def save_trace(trace: Trace, path: Path) -> None:
    """Write a trace as JSON."""
    path.write_text(json.dumps(_plain(trace), ensure_ascii=False) + "\n", encoding="utf-8")


def load_trace(path: Path) -> Trace:
    """Read a trace that `save_trace` wrote."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return Trace(_timed(data["load"]), _timed(data["swap"]), tuple(_timed(reply) for reply in data["replies"]))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return {"event": type(value).__name__, **named} if type(value).__name__ in EVENTS else named
    return value


def _timed(items: list[Any]) -> tuple[Timed, ...]:
    return tuple((at_s, _event(item)) for at_s, item in items)


def _event(item: dict[str, Any]) -> Event:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in item.items()}
    for key, kind in (("memory", Memory), ("sampling", Sampling)):
        if key in values:
            values[key] = kind(**values[key])
    if "segments" in values:
        values["segments"] = tuple(Segment(**{**s, "token_ids": tuple(s["token_ids"])}) for s in values["segments"])
    event: Event = EVENTS[values.pop("event")](**values)
    return event
