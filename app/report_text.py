"""A report for people, as Markdown: the aligned table that `specchat bench` prints, and the whole report as a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.report import Report
from engine.words import counted

HEAD = ("drafter", "method", "tok/s", "± 95%", "speed-up", "tau", "kept", "TTFT", "same text", "kept by position")
LEFT = (0, 1, 9)


def title(row: dict[str, Any]) -> str:
    """The drafter, and where plain decoding stood."""
    return f"{row['drafter']}, {row['place']}" if row.get("place") in ("first", "last") else str(row["drafter"])


def as_table(report: Report) -> str:
    """An aligned Markdown table with the notes below it."""
    notes = [f"- {note}" for note in report["notes"]]
    return table(HEAD, [cells(row) for row in report["rows"]], LEFT) + "\n".join([*([""] if notes else []), *notes, ""])


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]) -> str:
    """An aligned Markdown table; the columns `left` begin at the left."""
    lines = [[cell.replace("|", "\\|") for cell in line] for line in (head, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    drawn = [
        "| " + " | ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))) + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (w + 2) if i in left else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    return "\n".join([drawn[0], rule, *drawn[1:], ""])


def cells(row: dict[str, Any]) -> Sequence[str]:
    """One row of the table."""
    if row["tok_per_s"] is None:
        return (title(row), row["method"] or "–", "failed" if row["error"] else "–", *["–"] * (len(HEAD) - 4), "")
    return (
        title(row),
        row["method"],
        f"{row['tok_per_s']:.1f}",
        spread(row),
        f"{row['speedup']:.2f}x" if row["speedup"] is not None else "–",
        f"{row['tau']:.2f}",
        f"{row['kept']:.0%}" if row["per_position"] else "–",
        f"{row['ttft_s']:.2f} s",
        {True: "yes", False: "NO", None: "–"}[row["same_text"]],
        " ".join(f"{share:.0%}" for share in row["per_position"][:8]),
    )


def spread(row: dict[str, Any]) -> str:
    """Half the width of the interval of the rate."""
    low, high = row.get("tok_per_s_low"), row.get("tok_per_s_high")
    return f"{(high - low) / 2:.1f}" if low is not None and high is not None else "–"


def settings_line(report: Report) -> str:
    """What was measured, on one line."""
    settings, machine = report["settings"], report["machine"]
    gpus = machine.get("gpus") or []
    where = gpus[0]["name"] if gpus and str(settings["device"]).startswith("cuda") else machine.get("cpu") or settings["device"]
    temperature, torch = settings["sampling"]["temperature"], report["versions"].get("torch")
    parts = [
        f"{settings['target']} {settings['quant'] or ''}".strip(),
        str(where),
        f"torch {torch}" if torch else "",
        "greedy" if temperature == 0 else f"temperature {temperature}, seed {settings['seed']}",
        f"max {counted(settings['max_tokens'], 'token')}",
        counted(len(settings["prompts"]), "prompt") + (f" x {settings['repeat']}" if len(settings["prompts"]) > 1 else ""),
    ]
    return " · ".join(part for part in parts if part)


def as_markdown(report: Report) -> str:
    """The whole report as a document."""
    parts = [f"# {'Comparison' if report['kind'] == 'compare' else 'Benchmark'} of {report['made'].replace('T', ' ')}\n"]
    parts += [settings_line(report) + "\n", as_table(report)]
    if report["tasks"]:
        parts += ["## Speed-up by task\n", _tasks(report)]
    drafting = [row for row in report["rows"] if row["per_position"]]
    if drafting:
        parts += [
            "## Drafts kept by position\n",
            "Kept: of all drafts that deep. In brackets: of those whose tokens before were kept.\n",
            _positions(drafting),
        ]
    if agreement := report.get("agreement"):
        parts += [f"## Same text?\n\n{agreement['text']}\n"]
    how = "± 95% and the ranges of speed-ups: bootstrap intervals over the prompts. Speed-up is against all plain runs together."
    return "\n".join([*parts, how, ""])


def _tasks(report: Report) -> str:
    tasks = list(dict.fromkeys(row["task"] for row in report["tasks"]))
    lanes = list(dict.fromkeys(row["drafter"] for row in report["tasks"] if not row["place"]))
    found = {(row["task"], row["drafter"]): row for row in report["tasks"] if not row["place"]}
    return table(("drafter", *tasks), [(lane, *(interval(found[task, lane]) for task in tasks)) for lane in lanes], (0,))


def interval(row: dict[str, Any]) -> str:
    """A speed-up, with its interval where there is one."""
    if row["speedup"] is None:
        return "–"
    low, high = row["speedup_low"], row["speedup_high"]
    return f"{row['speedup']:.2f}x" + (f" ({low:.2f}–{high:.2f})" if low is not None else "")


def _positions(rows: list[dict[str, Any]]) -> str:
    deepest = max(len(row["per_position"]) for row in rows)
    lines = []
    for row in rows:
        shares = [f"{kept:.0%} ({reached:.0%})" for kept, reached in zip(row["per_position"], row["if_reached"], strict=True)]
        lines.append((title(row), *shares, *["–"] * (deepest - len(shares))))
    return table(("drafter", *(str(n + 1) for n in range(deepest))), lines, (0,))
