"""A report as one SVG picture: tokens/s of each lane, then the speed-up of each drafter by task, with the 95 % intervals as whiskers.

Only plain shapes and the viewer's own sans-serif font, so it looks alike in a browser, a README and an office program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from app.report import Report
from app.report_text import settings_line, title
from app.terminal import one_line

WIDTH, LEFT, RIGHT = 860, 250, 110  # the bars are between LEFT and WIDTH - RIGHT
ROW, GAP = 24, 14
COLOURS = ("#8a8f98", "#1f6fb2", "#c8641b", "#3c8d5a", "#8a4fb0", "#b0902a", "#2a93a0", "#b04a6a")


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; `low` and `high` are the ends of its whisker."""

    name: str
    value: float
    label: str
    colour: str
    low: float | None = None
    high: float | None = None


def as_svg(report: Report) -> str:
    """The picture."""
    rows = [row for row in report["rows"] if row["tok_per_s"] is not None]
    colours = _colours([str(row["drafter"]) for row in rows])
    speeds = [
        Bar(title(row), row["tok_per_s"], _rate(row), colours[row["drafter"]], row["tok_per_s_low"], row["tok_per_s_high"]) for row in rows
    ]
    charts: list[tuple[str, list[Bar], float | None]] = [("Tokens per second", speeds, None)]
    for task in dict.fromkeys(row["task"] for row in report["tasks"]):
        found = [r for r in report["tasks"] if r["task"] == task and not r["place"] and r["speedup"] is not None]
        bars = [
            Bar(
                r["drafter"],
                r["speedup"],
                f"{r['speedup']:.2f}x",
                colours.get(r["drafter"], COLOURS[0]),
                r["speedup_low"],
                r["speedup_high"],
            )
            for r in found
        ]
        charts.append((f"Speed-up: {task}", bars, 1.0))
    most = max((bar.high or bar.value for _, bars, mark in charts if mark for bar in bars), default=1.0)
    parts, y = [], 58
    for name, bars, mark in charts:
        drawn, y = _chart(name, bars, y, mark, max(most, mark) if mark else max((bar.high or bar.value for bar in bars), default=1.0))
        parts += drawn
    head = "Comparison" if report["kind"] == "compare" else "Benchmark"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" font-family="sans-serif">',
            f'<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>',
            _text(16, 26, f"{head}, {report['made'].replace('T', ' ')}", size=16, weight="bold"),
            _text(16, 46, one_line(settings_line(report), 120), fill="#555555"),
            *parts,
            "</svg>",
            "",
        ]
    )


def _colours(names: Sequence[str]) -> dict[str, str]:
    """Grey for plain decoding, else in turn."""
    others = [name for name in dict.fromkeys(names) if name != "none"]
    return {"none": COLOURS[0]} | {name: COLOURS[1 + n % (len(COLOURS) - 1)] for n, name in enumerate(others)}


def _rate(row: dict[str, float | None]) -> str:
    speedup = row["speedup"]
    return f"{row['tok_per_s']:.1f}" + (f"  {speedup:.2f}x" if speedup is not None else "")


def _chart(name: str, bars: Sequence[Bar], y: int, mark: float | None, most: float) -> tuple[list[str], int]:
    """The shapes of one group of bars, and where the next begins. `mark`: a line at this value."""
    y += GAP
    parts = [_text(16, y + 4, name, weight="bold")]
    y += 12
    scale = (WIDTH - LEFT - RIGHT) / most if most > 0 else 0.0
    top = y
    for bar in bars:
        parts.append(_text(LEFT - 8, y + 16, one_line(bar.name, 34), anchor="end"))
        parts.append(f'<rect x="{LEFT}" y="{y + 4}" width="{max(1.0, bar.value * scale):.1f}" height="{ROW - 8}" fill="{bar.colour}"/>')
        end = bar.value
        if bar.low is not None and bar.high is not None:
            low, high, middle = LEFT + bar.low * scale, LEFT + bar.high * scale, y + ROW / 2
            ends = " ".join(f"M{x:.1f} {middle - 4} v8" for x in (low, high))
            parts.append(f'<path d="M{low:.1f} {middle} H{high:.1f} {ends}" stroke="#222222" fill="none"/>')
            end = max(end, bar.high)
        end = max(end, mark) if mark is not None else end  # beside the line, not on it
        parts.append(_text(LEFT + end * scale + 6, y + 16, bar.label))
        y += ROW
    if mark is not None:
        x = LEFT + mark * scale
        parts.append(f'<path d="M{x:.1f} {top} V{y}" stroke="#222222" stroke-dasharray="3 3" fill="none"/>')
    return parts, y + GAP


def _text(x: float, y: float, text: str, *, size: int = 13, weight: str = "normal", anchor: str = "start", fill: str = "#222222") -> str:
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{fill}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
