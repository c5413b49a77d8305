"""`specchat compare`: one prompt, several drafters, the same table as `bench`, and whether all texts are the same."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from app.bench_command import keep, planned, progress_line
from app.compare import MOST, compare
from app.console import STOPPED, Interrupt, Ticker, emit, emit_json, say
from app.driver import Driver
from app.options import Options
from app.prompts import Prompt
from app.report import steps_csv
from app.report_text import as_table
from engine.client import Client, EngineClient


def run_compare(
    options: Options, drafters: Sequence[str], prompt: str, *, repeat: int = 1, as_json: bool = False, client: Client | None = None
) -> int:
    """Race and report; returns the exit code: 1 when a lane failed, 130 when stopped."""
    named = list(dict.fromkeys(name for name in drafters if name != "none"))
    if len(named) > MOST:
        raise typer.BadParameter(
            f"compare takes up to {MOST} drafters beside plain decoding, which always runs. Use `specchat bench` for more."
        )
    with Interrupt() as interrupt:
        plan = planned(options, named, (Prompt(prompt),), interrupt, repeat=repeat, plain_again=False, most=MOST)
        engine = client or EngineClient()
        ticker = Ticker()
        try:
            found = compare(plan, Driver(engine, interrupt), lambda now: ticker.show(now.title, progress_line(now, repeat)))
        finally:
            ticker.clear()
            engine.close(interrupt.close_s)
    result, report = found.result, found.report
    for lane in result.lanes:
        if lane.error:
            say(f"error: {lane.title}: {lane.error.message}")
    try:
        if as_json:
            emit_json(report)
        else:
            emit(f"{as_table(report)}\n{report['agreement']['text']}\n")
    finally:
        keep(report, steps_csv(result))
    if plan.template.sampling.temperature and options.seed is None:
        say(f"seed {plan.seed}")
    if result.stopped:
        return STOPPED
    return 1 if any(lane.error for lane in result.lanes) else 0
