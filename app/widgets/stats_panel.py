"""The panel of numbers: speed, acceptance by position, where the time goes, memory. All counted by `engine.stats`.

Beside the transcript in wide windows, below it in two columns in narrow ones. While it is hidden nobody computes what it would show.
"""

from __future__ import annotations

from itertools import pairwise

from textual.content import Content
from textual.widget import Widget

from app.meter import RATE_S, Overlay
from app.terminal import one_line
from engine.catalog.progress import human
from engine.protocol import Ready
from engine.stats import Stats
from engine.words import counted

WIDTH = 34  # columns beside the transcript, frame included
FEWEST = 4  # samples that make a line
POSITIONS = 8  # more are summed up in words
EIGHTHS = " ▏▎▍▌▋▊▉█"
LEVELS = "▁▂▃▄▅▆▇█"
Block = tuple[Content, list[Content]]  # a title and its rows


class StatsPanel(Widget):
    """Shows an `Overlay`; repainted only when it has changed."""

    DEFAULT_CSS = """
    StatsPanel { display: none; background: $surface; padding: 0 1; }
    StatsPanel.-beside { display: block; width: 34; height: 1fr; border-left: solid $panel-lighten-2; }
    StatsPanel.-below { display: block; width: 100%; height: auto; max-height: 10; border-top: solid $panel-lighten-2; }
    """
    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__()
        self._overlay: Overlay | None = None
        self._ready: Ready | None = None

    def show(self, overlay: Overlay, ready: Ready | None) -> None:
        """Paint, if something has changed."""
        if (overlay, ready) != (self._overlay, self._ready):
            self._overlay, self._ready = overlay, ready
            self.refresh(layout=self.has_class("-below"))

    def render(self) -> Content:
        if self._overlay is None:
            return Content("")
        return panel(self._overlay, self._ready, self.content_size.width, beside=self.has_class("-beside"))


def panel(overlay: Overlay, ready: Ready | None, width: int, *, beside: bool) -> Content:
    """The text for this width: one column, or two."""
    if beside:
        blocks = _blocks(overlay, ready, width, beside)
        return Content("\n\n").join(_column(block) for block in blocks)
    half = (width - 3) // 2
    blocks = _blocks(overlay, ready, half, beside)
    speed, accepted, times, memory = blocks
    left = [row for block in (speed, accepted) for row in (block[0], *block[1])]
    right = [row for block in (times, memory) for row in (block[0], *block[1])]
    rows = max(len(left), len(right))
    left += [Content("")] * (rows - len(left))
    right += [Content("")] * (rows - len(right))
    return Content("\n").join(Content.assemble(_fit(one, half), "   ", other) for one, other in zip(left, right, strict=True))


def _column(block: Block) -> Content:
    return Content("\n").join([block[0], *block[1]])


def _fit(row: Content, width: int) -> Content:
    row = row.truncate(width, ellipsis=True)
    return Content.assemble(row, " " * (width - row.cell_length))


def _blocks(overlay: Overlay, ready: Ready | None, width: int, long: bool) -> list[Block]:
    return [
        _speed(overlay, width, long),
        _acceptance(overlay, ready, width, long),
        _times(overlay.stats, width),
        _memory(overlay, ready, width),
    ]


def _speed(overlay: Overlay, width: int, long: bool) -> Block:
    now, stats = overlay.numbers, overlay.stats
    rows = []
    if now.average is not None:
        current = f"now {now.now:.1f}   " if now.now is not None else ""
        rows.append(Content(f" {current}avg {now.average:.1f} tok/s"))
    if now.ttft_s is not None:
        rows.append(Content(f" TTFT {now.ttft_s:.2f} s (prompt {overlay.prompt_tokens:,})"))
        if overlay.reused_tokens and long:
            rows.append(Content(f" of these {overlay.reused_tokens:,} reused"))
    if now.speedup is not None and now.average is not None:
        kind = "measured" if now.measured else "est."
        rows.append(Content(f" {now.speedup:.2f}x plain {now.average / now.speedup:.1f} ({kind})"))
    if len(overlay.rates) >= FEWEST:
        shown = overlay.rates[-4 * (width - 2) :]
        rows.append(Content(f" {sparkline(shown, width - 12)} last {len(shown) * RATE_S:.0f} s"))
    rows = rows or [Content.styled(" nothing written yet", "dim")]
    return _title("SPEED", f"{overlay.emitted:,} tok" if stats.steps else "", width), rows


def _acceptance(overlay: Overlay, ready: Ready | None, width: int, long: bool) -> Block:
    stats = overlay.stats
    title = _title("ACCEPTANCE", counted(stats.steps, "step") if stats.steps else "", width)
    if not stats.drafted:
        plain = ready is not None and ready.method == "none"
        return title, [Content.styled(" plain decoding: nothing drafted" if plain else " nothing drafted", "dim")]
    rows = [Content(f" τ {stats.tau:.2f} tok/step  kept {stats.kept:.0%}")]
    if not long:
        by_position = " ".join(f"{share * 100:.0f}" for share in stats.per_position)
        return title, [*rows, Content(f" by position {by_position} %").truncate(width, ellipsis=True)]
    rows.append(Content(f" {stats.accepted / max(1, overlay.emitted):.0%} of the text was drafted"))
    shown = stats.per_position[:POSITIONS]
    rows += [_bar(f"pos {n}", share, width, "$token-kept-3") for n, share in enumerate(shown, 1)]
    if more := len(stats.per_position) - len(shown):
        rows.append(Content.styled(f" {more} deeper, at last {stats.per_position[-1]:.0%}", "dim"))
    if stats.nodes > stats.drafted:
        rows.append(Content.styled(f" {counted(stats.nodes, 'node')} in trees {stats.drafted:,} deep", "dim"))
    return title, rows


def _times(stats: Stats, width: int) -> Block:
    parts = {"draft": stats.draft_s, "verify": stats.verify_s, "bridge": stats.bridge_s, "other": stats.other_s}
    whole = sum(parts.values())
    if not stats.steps or whole <= 0:
        return _title("TIME / STEP", "", width), [Content.styled(" no step yet", "dim")]
    if not stats.bridge_s:
        del parts["bridge"]
    rows = [_bar(f"{name:<6}", part / whole, width, "$primary") for name, part in parts.items()]
    return _title("TIME / STEP", f"{whole / stats.steps * 1000:.1f} ms", width), rows


def _memory(overlay: Overlay, ready: Ready | None, width: int) -> Block:
    memory = overlay.numbers.memory
    rows = []
    if overlay.numbers.on_card and memory.device_total:
        share = memory.device_used / memory.device_total
        rows.append(_bar("VRAM", share, width, "$primary", f"{memory.device_used / 1e9:.1f}/{memory.device_total / 1e9:.0f}G"))
    pieces = (("target", memory.target), ("draft", memory.drafter), ("kv", memory.kv))
    if any(size for _, size in pieces):
        rows += [Content(" " + "  ".join(f"{name} {human(size)}" for name, size in pieces if size)).truncate(width, ellipsis=True)]
    if overlay.context:
        used = overlay.prompt_tokens + overlay.emitted
        rows.append(_bar("ctx", used / overlay.context, width, "$primary", f"{used:,}/{overlay.context:,}"))
    where = one_line(ready.device, 12) if ready is not None else ""
    return _title("MEMORY", where, width), rows or [Content.styled(" no model", "dim")]


def _title(left: str, right: str, width: int) -> Content:
    return Content.assemble((left, "bold $accent"), " " * max(1, width - len(left) - len(right)), (right, "dim"))


def _bar(name: str, share: float, width: int, style: str, text: str = "") -> Content:
    """A name, a bar for 0–1, and the number."""
    text = text or f"{share:.0%}"
    room = max(3, width - len(name) - max(4, len(text)) - 3)
    return Content.assemble(f" {name} ", (bar(share, room), style), f" {text:>4}")


def bar(share: float, width: int) -> str:
    """A bar in eighths of a cell, filled up with spaces."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(width)


def sparkline(values: tuple[float, ...], width: int) -> str:
    """The values as columns of eight levels from 0 to the largest; neighbours are averaged where there is no room for all."""
    if not values or width <= 0:
        return ""
    columns = min(width, len(values))
    edges = [round(n * len(values) / columns) for n in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    top = max(means)
    return "".join(LEVELS[min(7, int(8 * mean / top))] if top > 0 else LEVELS[0] for mean in means)
