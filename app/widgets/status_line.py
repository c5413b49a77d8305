"""The row of numbers. When it gets narrow, parts go in a fixed order: the unit, context, memory, average, TTFT, kept, speed-up."""

from __future__ import annotations

from textual.content import Content

from app.meter import Numbers
from app.terminal import one_line
from app.widgets.line import Line, spread
from engine.catalog.progress import human
from engine.protocol import Memory

DROP = ("unit", "context", "memory", "average", "ttft", "kept", "speedup")
BAR = 10  # cells


class StatusLine(Line):
    """State, speed, waiting time, acceptance, speed-up, memory, context."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = Numbers("idle")

    def show(self, numbers: Numbers) -> None:
        """Paint, if a number has changed."""
        if numbers != self._numbers:
            self._numbers = numbers
            self.refresh()

    def line(self, width: int) -> Content:
        return status(self._numbers, width)


def status(numbers: Numbers, width: int) -> Content:
    """The row for this width."""
    if numbers.state in ("LOAD", "READ"):
        return _waiting(numbers, width)
    parts = _parts(numbers)
    for name in ("", *DROP):
        parts.pop(name, None)
        left, right = _layout(parts, numbers.state)
        if left.cell_length + right.cell_length + 1 <= width:
            break
    return spread(left, right, width)


def _parts(numbers: Numbers) -> dict[str, str]:
    parts: dict[str, str | None] = {
        "now": _rate(numbers.now, "now"),
        "average": _rate(numbers.average, "avg" if numbers.state == "GEN" else "tok/s"),
        "unit": "tok/s" if numbers.state == "GEN" and (numbers.now or numbers.average) else None,
        "ttft": f"TTFT {numbers.ttft_s:.1f}s" if numbers.ttft_s is not None else None,
        "tau": f"τ {numbers.tau:.1f}" if numbers.tau is not None else None,
        "kept": f"kept {numbers.kept:.0%}" if numbers.kept is not None else None,
        "speedup": f"{numbers.speedup:.1f}x{'' if numbers.measured else ' est'}" if numbers.speedup is not None else None,
        "memory": memory_text(numbers.memory, numbers.on_card) or None,
        "context": f"ctx {numbers.context:.0%}" if numbers.context is not None else None,
    }
    return {name: text for name, text in parts.items() if text is not None}


def _layout(parts: dict[str, str], state: str) -> tuple[Content, Content]:
    speed = " ".join(parts[name] for name in ("now", "average", "unit") if name in parts)
    accepted = " ".join(parts[name] for name in ("tau", "kept") if name in parts)
    groups = [speed, parts.get("ttft", ""), accepted, parts.get("speedup", "")]
    left = Content.assemble(" ", (state, "bold"), " ", " | ".join(group for group in groups if group))
    return left, Content("  ".join(parts[name] for name in ("memory", "context") if name in parts))


def _waiting(numbers: Numbers, width: int) -> Content:
    """LOAD and READ: what, how far, and a bar where there is room for it."""
    if numbers.state == "READ":
        how_far = f"{numbers.done:,}/{numbers.total:,} tok" if numbers.total else "the prompt"
        how_far += f" ({numbers.reused:,} reused)" if numbers.reused else ""
    else:
        how_far = _amount(numbers)
    bar = ""
    if numbers.total and width >= 70:
        full = round(BAR * min(1.0, numbers.done / numbers.total))
        bar = "█" * full + "░" * (BAR - full)
    left = Content.assemble(" ", (numbers.state, "bold"), " ", one_line(numbers.stage), " " if numbers.stage else "", how_far)
    return spread(left, Content(bar), width)


def _amount(numbers: Numbers) -> str:
    if not numbers.done and not numbers.total:
        return ""
    if numbers.unit.lower() in ("b", "byte", "bytes"):
        return f"{human(numbers.done)}/{human(numbers.total)}" if numbers.total else human(numbers.done)
    return (f"{numbers.done:,}/{numbers.total:,}" if numbers.total else f"{numbers.done:,}") + f" {one_line(numbers.unit)}".rstrip()


def _rate(rate: float | None, word: str) -> str | None:
    if rate is None:
        return None
    return f"{rate:.1f} {word}".rstrip() if rate < 9.95 else f"{rate:.0f} {word}".rstrip()


def memory_text(memory: Memory, on_card: bool) -> str:
    """The graphics card's memory, since other programs count there; on the CPU what the models take."""
    if on_card and memory.device_total:
        return f"VRAM {memory.device_used / 1e9:.1f}/{memory.device_total / 1e9:.0f}G"
    used = memory.target + memory.drafter + memory.kv
    return f"mem {used / 1e9:.1f}G" if used else ""
