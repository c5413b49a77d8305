"""What a bench or a comparison found, as one plain object: `report.json`. Tables, pictures and screens are made from it alone.

`rows` has one entry per lane with the keys of `ROW_KEYS`; they only ever grow.
"""

from __future__ import annotations

import csv
import io
import platform
from dataclasses import asdict
from datetime import datetime
from importlib import metadata
from typing import Any

from app.bench import Lane, Result
from app.intervals import rate_interval, speedup_interval
from engine.catalog import hardware
from engine.stats import Stats

FORMAT = 1
ROW_KEYS = (
    "drafter", "method", "tok_per_s", "speedup", "tau", "kept", "ttft_s", "same_text", "per_position",
    "place", "tok_per_s_low", "tok_per_s_high", "speedup_low", "speedup_high", "if_reached", "tokens_per_step",
    "draft_share", "verify_share", "memory", "replies", "tokens", "error",
)  # fmt: skip
TASK_KEYS = ("task", "drafter", "place", "tok_per_s", "speedup", "speedup_low", "speedup_high", "tau", "kept")
STEP_KEYS = (
    "drafter", "place", "repeat", "prompt", "step", "emitted", "drafted", "accepted", "nodes",
    "draft_s", "verify_s", "bridge_s", "other_s", "at_s",
)  # fmt: skip
PACKAGES = ("specchat", "torch", "transformers", "bitsandbytes", "accelerate", "safetensors", "gguf", "huggingface-hub", "textual", "typer")
Report = dict[str, Any]


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
    """One row; a lane without a finished reply has null for its numbers."""
    plain = result.plain
    stats = lane.tally.stats()
    measured = bool(lane.runs)
    rate = rate_interval(lane.units) if measured else None
    faster = speedup_interval(lane.units, plain.units) if measured and not lane.place else None
    last = lane.runs[-1].answer.done.memory if measured else None
    return {
        "drafter": lane.drafter.name,
        "method": lane.method or None,
        "tok_per_s": lane.tok_per_s if measured else None,
        "speedup": lane.tok_per_s / plain.tok_per_s if measured and plain.tok_per_s else None,
        "tau": stats.tau if measured else None,
        "kept": stats.kept if measured else None,
        "ttft_s": lane.ttft_s if measured else None,
        "same_text": result.same_text(lane),
        "per_position": list(stats.per_position),
        "place": lane.place or None,
        "tok_per_s_low": rate[0] if rate else None,
        "tok_per_s_high": rate[1] if rate else None,
        "speedup_low": faster[0] if faster else None,
        "speedup_high": faster[1] if faster else None,
        "if_reached": list(lane.tally.if_reached),
        "tokens_per_step": _tokens_per_step(lane),
        "draft_share": _share(stats, stats.draft_s + stats.bridge_s) if measured else None,
        "verify_share": _share(stats, stats.verify_s) if measured else None,
        "memory": last.target + last.drafter + last.kv if last else None,
        "replies": len(lane.runs),
        "tokens": lane.tally.emitted,
        "error": lane.error.message if lane.error else None,
    }


def _share(stats: Stats, part_s: float) -> float | None:
    whole_s = stats.draft_s + stats.verify_s + stats.bridge_s + stats.other_s
    return part_s / whole_s if whole_s > 0 else None


def _tokens_per_step(lane: Lane) -> list[int]:
    """[i]: steps that emitted i tokens."""
    emitted = [step.emitted for run in lane.runs for step in run.steps]
    return [emitted.count(n) for n in range(max(emitted) + 1)] if emitted else []


def as_report(result: Result, kind: str = "bench") -> Report:
    """Everything: machine, versions, settings, rows in the order of the table, tasks, notes, and each single reply."""
    plan, ready = result.plan, result.ready
    template = plan.template
    return {
        "format": FORMAT,
        "kind": kind,
        "made": datetime.now().astimezone().isoformat(timespec="seconds"),
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
            "prompts": [prompt.text for prompt in plan.prompts],
            "tasks": [prompt.task for prompt in plan.prompts],
        },
        "rows": [row(result, lane) for lane in result.lanes],
        "tasks": _tasks(result),
        "plain_tok_per_s": result.plain.tok_per_s or None,
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


def _tasks(result: Result) -> list[dict[str, Any]]:
    """The same numbers for each kind of task, where there are several."""
    names = list(dict.fromkeys(prompt.task for prompt in result.plan.prompts if prompt.task))
    if len(names) < 2:
        return []
    parts = [(name, result.about(name)) for name in names]
    return [{"task": name} | {key: row(part, lane)[key] for key in TASK_KEYS[1:]} for name, part in parts for lane in part.lanes]


def _used_sampling(result: Result) -> Any:
    """What the engine used, with the model's defaults filled in; what was asked for when no reply came."""
    used = [run.answer.done.sampling for lane in result.lanes for run in lane.runs]
    return used[0] if used else result.plan.template.sampling


def as_csv(report: Report) -> str:
    """The rows; lists as numbers with spaces between."""
    return _csv(ROW_KEYS, [{key: _cell(value) for key, value in row.items()} for row in report["rows"]])


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join(f"{item:.4f}" if isinstance(item, float) else str(item) for item in value)
    return value


def steps_csv(result: Result) -> str:
    """One row per verifying step of every measured reply."""
    return _csv(
        STEP_KEYS,
        [
            {
                "drafter": lane.drafter.name, "place": lane.place, "repeat": run.repeat, "prompt": run.prompt, "step": step.index,
                **{key: getattr(step, key) for key in STEP_KEYS[5:9]},
                **{key: f"{getattr(step, key):.6f}" for key in STEP_KEYS[9:]},
            }
            for lane in result.lanes
            for run in lane.runs
            for step in run.steps
        ],
    )  # fmt: skip


def _csv(keys: tuple[str, ...], rows: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
