"""`specchat bench`: options to a plan, progress on stderr, the table on stdout, the files. Every result is kept, too (`app.results`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from app import results
from app.bench import Plan, Progress, measure
from app.beside import others, reason
from app.check import facts
from app.choose import choose
from app.console import STOPPED, Interrupt, Ticker, emit, say
from app.driver import Driver
from app.models import made_for
from app.options import Options
from app.prompts import Prompt, read
from app.pull import ensure, on_disk
from app.report import Report, as_report, steps_csv
from app.report_text import as_table
from app.run import fresh_seed, generate
from app.surroundings import reference
from engine.catalog import bindings, catalog
from engine.catalog.specs import NGRAM, ModelSpec
from engine.client import Client, EngineClient
from engine.errors import EngineError
from engine.words import counted


def bench(
    options: Options,
    drafters: Sequence[str],
    *,
    prompts: str = "mixed",
    repeat: int = 1,
    json_file: Path | None = None,
    csv_file: Path | None = None,
    markdown_file: Path | None = None,
    svg_file: Path | None = None,
    client: Client | None = None,
) -> int:
    """Measure and report; returns the exit code: 1 when a lane failed, 130 when stopped."""
    texts = read(prompts)
    wanted = {"report.json": json_file, "summary.csv": csv_file, "report.md": markdown_file, "report.svg": svg_file}
    for file in wanted.values():
        if file is not None:
            _check_writable(file)
    with Interrupt() as interrupt:
        plan = planned(options, drafters, texts, interrupt, repeat=repeat)
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
    report = as_report(result)
    made = results.files(report)
    try:
        emit(as_table(report))
    finally:  # neither a closed stdout nor a full disk may cost the other half of the report
        for name, path in wanted.items():
            if path is not None:
                _write(path, made[name])
        keep(report, steps_csv(result))
    if plan.template.sampling.temperature and options.seed is None:
        say(f"seed {plan.seed}")
    if result.stopped:
        return STOPPED
    return 1 if any(lane.error for lane in result.lanes) else 0


def planned(
    options: Options,
    drafters: Sequence[str],
    prompts: tuple[Prompt, ...],
    interrupt: Interrupt,
    *,
    repeat: int = 1,
    plain_again: bool = True,
    most: int | None = None,
) -> Plan:
    """From the options to what is measured; downloads what is named and missing. Temperature 0 unless one was given.

    Without names: the drafters that are there, `most` of them.
    """
    models = catalog.load()
    choice = choose(options, models)
    chosen = list(dict.fromkeys(models.drafter(name) for name in drafters)) or there(models, choice.target, most)
    chosen = [spec for spec in chosen if spec.kind != "none"]  # plain is measured anyway
    for spec in chosen:
        bindings.require(spec, choice.target)
    ensure(choice.target, interrupt, offline=options.offline, named=choice.named)
    for spec in chosen:
        ensure(spec, interrupt, offline=options.offline, option="-d")
    seed = fresh_seed() if options.seed is None else options.seed
    template = generate(options, "", 0)
    sampling = replace(template.sampling, temperature=0.0 if options.temp is None else options.temp)
    template = replace(template, sampling=sampling, messages=template.messages[:-1])
    return Plan(
        choice.target, tuple(chosen), prompts, template, options.load_options(), options.method, repeat, seed, plain_again=plain_again
    )


def keep(report: Report, steps: str | None = None) -> None:
    """Save among the results; a measurement that could not be saved is still a measurement."""
    try:
        say(f"saved in {results.save(report, steps)}")
    except EngineError as error:
        say(f"note: the result is not saved. {error.message}")


def there(models: catalog.Catalog, target: ModelSpec, most: int | None = None) -> list[ModelSpec]:
    """Without `-d`: look-up, what is made for this target, and other small models that go with it; of what is on disk, `most` of them."""
    found = [NGRAM, *(spec for spec in made_for(models, target) if on_disk(spec))]
    if not on_disk(target):
        return found[:most]
    for spec in others(models, on_disk, target, found):
        if most is not None and len(found) >= most:
            break
        try:
            sound = not reason(facts(reference(target), reference(spec)))
        except EngineError:  # damaged, or of a kind that cannot draft
            sound = False
        found += [spec] if sound else []
    return found[:most]


def _what(now: Progress) -> str:
    return f"{now.title}/{now.repeat}"


def progress_line(now: Progress, repeats: int) -> str:
    """One line: lane, round, prompt, tokens."""
    parts = [f"lane {now.lane} of {now.lanes}: {now.title}"]
    if repeats > 1:
        parts.append(f"round {now.repeat} of {repeats}")
    parts.append(f"prompt {now.prompt} of {now.prompts}" if now.prompt else "loading and warming up")
    if now.tokens:
        parts.append(counted(now.tokens, "token"))
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
        raise results.cannot_write(path, error) from error
