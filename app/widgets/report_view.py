"""A report as text for a terminal: settings, table, speed-up by task with its intervals, drafts by position, notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual.content import Content

from app.report import Report
from app.report_text import interval, settings_line, spread, title
from app.terminal import column, for_terminal, one_line
from engine.words import counted

NAME = 24
# heading, width, the window's least width
COLUMNS = (
    ("TOK/S", 8, 0), ("± 95%", 7, 64), ("SPEED-UP", 10, 0), ("TTFT s", 8, 78), ("τ", 7, 0), ("KEPT", 6, 0),
    ("DRAFT %", 9, 100), ("VERIFY %", 10, 100), ("MEM GB", 8, 110), ("SAME TEXT", 11, 88),
)  # fmt: skip
BAR_FROM, BAR_TO = 22, 60  # columns of a plot
EIGHTHS = " ▏▎▍▌▋▊▉█"
Lines = list[Content]


def report_content(report: Report, width: int) -> Content:
    """All of it, for this width."""
    blocks = [
        [Content(for_terminal(settings_line(report)))],
        table(report["rows"], width),
        tasks(report, width),
        positions(report, width),
        _notes(report),
    ]
    return Content("\n\n").join(Content("\n").join(block) for block in blocks if block)


def table(rows: Sequence[dict[str, Any]], width: int) -> Lines:
    """One line per lane; the fastest is marked."""
    columns = [column for column in COLUMNS if width >= column[2]]
    name = max(10, min(NAME + 6, width - 2 - sum(cells for _, cells, _ in columns)))
    best = max((row["tok_per_s"] or 0.0 for row in rows), default=0.0)
    heading = f"  {'DRAFTER':<{name}}" + "".join(f"{head:>{cells}}" for head, cells, _ in columns)
    lines = [Content.styled(heading, "bold")]
    for row in rows:
        mark = "*" if row["tok_per_s"] and row["tok_per_s"] == best else " "
        head = f"{mark} {column(title(row), name)}"
        if row["tok_per_s"] is None:
            lines.append(Content(f"{head} {'failed' if row['error'] else 'not measured'}"))
            continue
        values = _values(row)
        lines.append(Content(head + "".join(f"{values[column]:>{cells}}" for column, cells, _ in columns)))
    return lines


def _values(row: dict[str, Any]) -> dict[str, str]:
    share = {name: f"{row[name]:.0%}" if row[name] is not None else "–" for name in ("draft_share", "verify_share")}
    return {
        "TOK/S": f"{row['tok_per_s']:.1f}",
        "± 95%": spread(row),
        "SPEED-UP": f"{row['speedup']:.2f}x" if row["speedup"] is not None else "–",
        "TTFT s": f"{row['ttft_s']:.2f}",
        "τ": f"{row['tau']:.2f}",
        "KEPT": f"{row['kept']:.0%}" if row["per_position"] else "–",
        "DRAFT %": share["draft_share"],
        "VERIFY %": share["verify_share"],
        "MEM GB": f"{row['memory'] / 1e9:.1f}" if row["memory"] else "–",
        "SAME TEXT": {True: "yes", False: "NO", None: "–"}[row["same_text"]],
    }


def tasks(report: Report, width: int) -> Lines:
    """For each kind of task a row per drafter: a mark at the speed-up, a line over its interval, a bar where plain decoding is."""
    rows = [row for row in report["tasks"] if not row["place"] and row["speedup"] is not None]
    if not rows:
        return []
    most = max(1.25, *(row["speedup_high"] or row["speedup"] for row in rows))
    numbers = 18 if width >= 90 else 8
    drafter = 24 if width >= 100 else 16
    name = 13 + drafter
    cells = max(10, min(BAR_TO, width - 3 - name - numbers))
    scale = (cells - 1) / most
    axis = [" "] * cells
    for tick in range(0, int(most * 2) + 1):
        label = f"{tick / 2:g}x"
        at = round(tick / 2 * scale)
        if tick % 2 == 0 and at + len(label) <= cells:
            axis[at : at + len(label)] = label
    lines = [Content.assemble(("SPEED-UP BY TASK", "bold"), " " * (name - 14), ("".join(axis), "dim"))]
    before = ""
    for row in rows:
        task = "" if row["task"] == before else row["task"]
        before = row["task"]
        text = interval(row) if numbers > 8 else f"{row['speedup']:.2f}x"
        head = f"  {column(task, 13)}{column(row['drafter'], drafter)}"
        lines.append(Content.assemble(head, *_whisker(row, cells, scale), f" {text}"))
    return lines


def _whisker(row: dict[str, Any], cells: int, scale: float) -> list[tuple[str, str] | str]:
    drawn = ["·" if at % 10 == 0 else " " for at in range(cells)]
    low, high = row["speedup_low"], row["speedup_high"]
    if low is not None and high is not None:
        for at in range(round(low * scale), min(cells - 1, round(high * scale)) + 1):
            drawn[at] = "─"
    drawn[min(cells - 1, round(scale))] = "|"
    at = min(cells - 1, round(row["speedup"] * scale))
    return ["".join(drawn[:at]), ("◆", "$success bold" if row["speedup"] >= 1 else "$warning bold"), "".join(drawn[at + 1 :])]


def positions(report: Report, width: int) -> Lines:
    """How many drafted tokens were kept by their place in the draft; beside it how many tokens a step gave."""
    lines: Lines = []
    for row in report["rows"]:
        if not row["per_position"]:
            continue
        counts = row["tokens_per_step"]
        steps = sum(counts)
        two = width >= 92 and steps > 0
        half = (width - 4) // 2 if two else width - 2
        heading = f"KEPT BY POSITION ({one_line(title(row), 20)})"
        right = f"TOKENS PER STEP ({counted(steps, 'step')}, mean {row['tau']:.2f})" if two else ""
        lines += [Content("")] if lines else []
        lines.append(Content.styled(f"{heading:<{half}}  {right}", "bold"))
        left_rows = [
            _bar(f"{n:>3}", kept, f"{kept:4.0%}  {reached:4.0%} if reached", half)
            for n, (kept, reached) in enumerate(zip(row["per_position"], row["if_reached"], strict=True), 1)
        ][:10]
        right_rows = (
            [_bar(f"{n:>3}", count / steps, f"{count / steps:4.0%}", half) for n, count in enumerate(counts) if n][:10] if two else []
        )
        for n in range(max(len(left_rows), len(right_rows))):
            left = left_rows[n] if n < len(left_rows) else ""
            lines.append(Content(f"{left:<{half}}  {right_rows[n] if n < len(right_rows) else ''}".rstrip()))
    return lines


def _bar(head: str, share: float, text: str, width: int) -> str:
    cells = max(6, min(28, width - len(head) - len(text) - 3))
    eighths = round(8 * cells * min(1.0, share))
    bar = "█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")
    return f"{head} {bar:<{cells}} {text}"


def _notes(report: Report) -> Lines:
    notes = [*report["notes"], *([report["agreement"]["text"]] if report.get("agreement") else [])]
    same = [row for row in report["rows"] if row["same_text"] is not None]
    if same and all(row["same_text"] for row in same):
        notes.append("All texts are the same, token by token, with every drafter and without.")
    if report["kind"] == "bench":
        notes.append(
            "± and lines: 95 % bootstrap intervals over the prompts, from three prompts on. Speed-up: against all plain runs together."
        )
    return [Content.styled("NOTES", "bold"), *(Content(f"  {for_terminal(note)}") for note in notes)] if notes else []


def beside(old: Report, new: Report, width: int) -> Content:
    """Two reports: each drafter's rate in both, and the change."""
    name = max(16, min(NAME + 8, width - 36))
    found: dict[str, list[dict[str, Any] | None]] = {}
    for at, report in enumerate((old, new)):
        for row in report["rows"]:
            if row.get("place") != "last":
                found.setdefault(row["drafter"], [None, None])[at] = row
    lines = [
        Content(f"A  {old['made'].replace('T', ' ')}  {one_line(settings_line(old), max(20, width - 32))}"),
        Content(f"B  {new['made'].replace('T', ' ')}  {one_line(settings_line(new), max(20, width - 32))}"),
        Content(""),
        Content.styled(f"  {'DRAFTER':<{name}}{'A tok/s':>9}{'B tok/s':>9}{'B / A':>8}{'τ A':>7}{'τ B':>7}", "bold"),
    ]
    for drafter, (a, b) in found.items():
        rates = [row["tok_per_s"] if row else None for row in (a, b)]
        ratio = f"{rates[1] / rates[0]:.2f}x" if rates[0] and rates[1] else "–"
        taus = [f"{row['tau']:.2f}" if row and row["tau"] is not None else "–" for row in (a, b)]
        shown = [f"{rate:.1f}" if rate else "–" for rate in rates]
        lines.append(Content(f"  {column(drafter, name)}{shown[0]:>9}{shown[1]:>9}{ratio:>8}{taus[0]:>7}{taus[1]:>7}"))
    if old["settings"]["prompts"] != new["settings"]["prompts"] or old["settings"]["target"] != new["settings"]["target"]:
        lines += [Content(""), Content("  These two measured different things (target or prompts): the ratio says little.")]
    return Content("\n").join(lines)
