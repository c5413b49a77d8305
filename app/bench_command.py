"""`specchat bench`: options to a plan, progress on stderr, the table on stdout, the JSON and CSV files."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from app.bench import Plan, Progress, measure, read_prompts
from app.choose import choose
from app.console import STOPPED, Interrupt, Ticker, emit, say
from app.driver import Driver
from app.models import made_for
from app.options import Options
from app.pull import ensure, on_disk
from app.report import as_csv, as_json, as_table
from app.run import fresh_seed, generate
from engine.catalog import catalog
from engine.catalog.specs import NGRAM, ModelSpec
from engine.client import Client, EngineClient
from engine.errors import EngineError


def bench(
    options: Options,
    drafters: Sequence[str],
    *,
    prompts: str = "mixed",
    repeat: int = 1,
    json_file: Path | None = None,
    csv_file: Path | None = None,
    client: Client | None = None,
) -> int:
    """Measure and report; returns the exit code: 1 when a lane failed, 130 when stopped."""
    texts = read_prompts(prompts)
    for file in (json_file, csv_file):
        if file is not None:
            _check_writable(file)
    with Interrupt() as interrupt:
        models = catalog.load()
        choice = choose(options, models)
        chosen = list(dict.fromkeys(models.drafter(name) for name in drafters)) or _there(models, choice.target)
        chosen = [spec for spec in chosen if spec.kind != "none"]  # plain is measured anyway
        ensure(choice.target, interrupt, offline=options.offline, named=choice.named)
        for spec in chosen:
            ensure(spec, interrupt, offline=options.offline, option="-d")
        seed = fresh_seed() if options.seed is None else options.seed
        template = generate(options, "", 0)
        sampling = replace(template.sampling, temperature=0.0 if options.temp is None else options.temp)
        template = replace(template, sampling=sampling, messages=template.messages[:-1])
        plan = Plan(choice.target, tuple(chosen), texts, template, options.load_options(), options.method, repeat, seed)
        engine = client or EngineClient()
        ticker = Ticker()
        try:
            result = measure(plan, Driver(engine, interrupt), lambda now: ticker.show(_what(now), progress_line(now, repeat)))
        finally:
            ticker.clear()
            engine.close(interrupt.close_s)
    for lane in result.lanes:
        if lane.error:
            say(f"error: {lane.title}: {lane.error.message}")
    try:
        emit(as_table(result))
    finally:  # neither a closed stdout nor a full disk may cost the other half of the report
        if json_file is not None:
            _write(json_file, json.dumps(as_json(result), ensure_ascii=False, indent=1) + "\n")
        if csv_file is not None:
            _write(csv_file, as_csv(result))
    if sampling.temperature and options.seed is None:
        say(f"seed {seed}")
    if result.stopped:
        return STOPPED
    return 1 if any(lane.error for lane in result.lanes) else 0


def _there(models: catalog.Catalog, target: ModelSpec) -> list[ModelSpec]:
    """Without `-d`: look-up, and the drafters made for this target that are on disk."""
    return [NGRAM, *(spec for spec in made_for(models, target) if on_disk(spec))]


def _what(now: Progress) -> str:
    return f"{now.title}/{now.repeat}"


def progress_line(now: Progress, repeats: int) -> str:
    """One line: lane, round, prompt, tokens."""
    parts = [f"lane {now.lane} of {now.lanes}: {now.title}"]
    if repeats > 1:
        parts.append(f"round {now.repeat} of {repeats}")
    parts.append(f"prompt {now.prompt} of {now.prompts}" if now.prompt else "loading and warming up")
    if now.tokens:
        parts.append(f"{now.tokens} tokens")
    return " · ".join(parts)


def _check_writable(path: Path) -> None:
    """A long measurement must not end in a path that cannot be written."""
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise EngineError(f"{path} cannot be written.", "Choose a file in a folder that exists and is yours.", kind="unwritable")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        kind = "disk_full" if error.errno == errno.ENOSPC else "unwritable"
        raise EngineError(f"{path} cannot be written: {error.strerror or error}.", "Free some space.", kind=kind) from error
