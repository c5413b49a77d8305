"""What a bench found, for people and programs: an aligned Markdown table, the JSON file, the CSV file."""

from __future__ import annotations

import csv
import io
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from typing import Any

from app.bench import Lane, Result
from engine.catalog import hardware

ROW_KEYS = ("drafter", "method", "tok_per_s", "speedup", "tau", "kept", "ttft_s", "same_text", "per_position")
PACKAGES = ("specchat", "torch", "transformers", "bitsandbytes", "accelerate", "safetensors", "gguf", "huggingface-hub", "textual", "typer")


def versions() -> dict[str, str | None]:
    """Python and the packages that matter, without importing any of them; None where one is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def machine() -> dict[str, Any]:
    """The machine in words and numbers."""
    return {"system": platform.platform(), **asdict(hardware.probe())}


def row(result: Result, lane: Lane) -> dict[str, Any]:
    """One row, with the keys of `ROW_KEYS`; a lane without a finished reply has null for its numbers."""
    plain = result.plain_tok_per_s
    stats = lane.tally.stats()
    measured = bool(lane.runs)
    return {
        "drafter": lane.drafter.name,
        "method": lane.method or None,
        "tok_per_s": lane.tok_per_s if measured else None,
        "speedup": lane.tok_per_s / plain if measured and plain else None,
        "tau": stats.tau if measured else None,
        "kept": stats.kept if measured else None,
        "ttft_s": lane.ttft_s if measured else None,
        "same_text": result.same_text(lane),
        "per_position": list(stats.per_position),
    }


def as_json(result: Result) -> dict[str, Any]:
    """Everything: machine, versions, settings, rows in the order of the table, notes, and each single reply."""
    plan, ready = result.plan, result.ready
    template = plan.template
    return {
        "machine": machine(),
        "versions": versions(),
        "settings": {
            "target": ready.target if ready else plan.target.name,
            "device": ready.device if ready else None,
            "quant": ready.quant if ready else None,
            "head": ready.head if ready else None,
            "draft_quant": plan.load.draft_quant,
            "context": ready.context if ready else None,
            "exact": ready.exact if ready else None,
            "method": plan.method,
            "verify": template.verify,
            "strict": template.strict,
            "k": template.k,
            "sampling": asdict(_used_sampling(result)),
            "seed": plan.seed,
            "max_tokens": template.max_tokens,
            "stop": list(template.stop),
            "raw": template.raw is not None,
            "repeat": plan.repeat,
            "prompts": list(plan.prompts),
        },
        "rows": [row(result, lane) for lane in result.lanes],
        "plain_tok_per_s": result.plain_tok_per_s or None,
        "notes": result.notes(),
        "stopped": result.stopped,
        "replies": [
            {
                "drafter": lane.drafter.name,
                "place": lane.place or None,
                "repeat": run.repeat,
                "prompt": run.prompt,
                "tokens": len(run.answer.done.token_ids),
                "prompt_tokens": run.answer.done.prompt_tokens,
                "reused_tokens": run.answer.done.reused_tokens,
                "finish_reason": run.answer.done.finish_reason,
                "stats": asdict(run.answer.stats),
            }
            for lane in result.lanes
            for run in lane.runs
        ],
    }


def _used_sampling(result: Result) -> Any:
    """What the engine used, with the model's defaults filled in; what was asked for when no reply came."""
    used = [run.answer.done.sampling for lane in result.lanes for run in lane.runs]
    return used[0] if used else result.plan.template.sampling


def as_csv(result: Result) -> str:
    """The rows; `per_position` as numbers with spaces between."""
    out = io.StringIO()
    writer = csv.DictWriter(out, ROW_KEYS, lineterminator="\n")
    writer.writeheader()
    for lane in result.lanes:
        values = row(result, lane)
        writer.writerow(values | {"per_position": " ".join(f"{share:.4f}" for share in values["per_position"])})
    return out.getvalue()


def as_table(result: Result) -> str:
    """An aligned Markdown table with the notes below it."""
    head = ("drafter", "method", "tok/s", "speed-up", "tau", "kept", "TTFT", "same text", "kept by position")
    lines = [head, *(_cells(result, lane) for lane in result.lanes)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    left = (0, 1, 8)
    drawn = [
        "| " + " | ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))) + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (w + 2) if i in left else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    notes = [f"- {note}" for note in result.notes()]
    return "\n".join([drawn[0], rule, *drawn[1:], *([""] if notes else []), *notes]) + "\n"


def _cells(result: Result, lane: Lane) -> Sequence[str]:
    values = row(result, lane)
    if not lane.runs:
        return (lane.title, lane.method or "–", "failed" if lane.error else "–", "–", "–", "–", "–", "–", "")
    return (
        lane.title,
        lane.method,
        f"{values['tok_per_s']:.1f}",
        f"{values['speedup']:.2f}x" if values["speedup"] is not None else "–",
        f"{values['tau']:.2f}",
        f"{values['kept']:.0%}" if lane.tally.drafted else "–",
        f"{values['ttft_s']:.2f} s",
        {True: "yes", False: "NO", None: "–"}[values["same_text"]],
        " ".join(f"{share:.0%}" for share in values["per_position"][:8]),
    )
