"""Downloads from the command line: `specchat pull`, `specchat rm`, and getting what `run` and `bench` name.

Nothing is fetched unless a person named it, and never with `--offline`.
"""

from __future__ import annotations

import sys

from app.console import Interrupt, Ticker, is_terminal, say
from app.driver import cancelled
from app.sizes import by_source
from engine.catalog import hub
from engine.catalog.catalog import Catalog
from engine.catalog.progress import human
from engine.catalog.specs import ModelSpec
from engine.errors import EngineError

WITHOUT_FILES = ("none", "ngram", "auto")


def find(catalog: Catalog, name: str) -> ModelSpec:
    """A target or a drafter by name, hub id, folder or file."""
    if name in catalog.drafters and name not in catalog.targets:
        return catalog.drafter(name)
    return catalog.heads(name) or catalog.target(name)


def on_disk(spec: ModelSpec) -> bool:
    """True when it can be loaded without the network."""
    return spec.kind in WITHOUT_FILES or hub.locate(spec) is not None


def fetch(spec: ModelSpec, interrupt: Interrupt) -> None:
    """Pull with progress on stderr; Ctrl+C stops it, and what came stays for the next time."""
    ticker = Ticker()
    try:
        hub.pull(spec, lambda now: ticker.show(now.file, progress_line(spec.name, now)), interrupt.stopped.is_set)
    finally:
        ticker.clear()


def progress_line(name: str, progress: hub.Progress) -> str:
    """One line: name, bytes, rate, time left."""
    parts = [f"{human(progress.done)} of {human(progress.total)}" if progress.total else human(progress.done)]
    if progress.rate > 0:
        parts.append(f"{human(progress.rate)}/s")
    if progress.left_s is not None and progress.done < progress.total:
        parts.append(f"{clock(progress.left_s)} left")
    parts += [part for part in (progress.file, progress.note) if part]
    return f"pulling {name} from the {progress.source}: " + " · ".join(parts)


def clock(seconds: float) -> str:
    """42 s, 3:05 min, 1:20 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60}:{whole % 60:02} min" if whole < 3600 else f"{whole // 3600}:{whole % 3600 // 60:02} h"


def ensure(spec: ModelSpec, interrupt: Interrupt, *, offline: bool, named: bool = True, option: str = "-t") -> None:
    """Have the model on disk, or raise. One that nobody named is fetched only after a yes on a terminal."""
    if on_disk(spec):
        return
    if spec.path is not None:
        raise EngineError(f"{spec.path} does not exist.", "Check the path.", kind="missing_weights")
    size = f" ({words})" if (words := by_source(spec)) else ""
    if offline:
        raise EngineError(
            f"{spec.name} is not on this machine, and --offline forbids the download{size}.",
            f"Run `specchat pull {spec.name}` while online, or choose one that `specchat models` shows as on disk.",
            kind="missing_weights",
        )
    if not named and not _agreed(f"{spec.name}{size} is not on this machine yet. Download it now? [y/N] ", interrupt):
        raise EngineError(
            f"{spec.name}{size}, the model for this machine, is not there yet, and nothing is downloaded unless you name it.",
            f"Run `specchat pull {spec.name}`, or name a model: {option} {spec.name}.",
            kind="missing_weights",
        )
    fetch(spec, interrupt)
    say(f"{spec.name} is on this machine now ({human(hub.disk_use(spec))}).")


def _agreed(question: str, interrupt: Interrupt) -> bool:
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        return False

    def leave() -> None:
        raise KeyboardInterrupt  # from the signal handler: else the system call would just go on

    say(question, end="")
    interrupt.on_stop = leave
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        say("")
        raise cancelled() from None
    finally:
        interrupt.on_stop = None


def pull(catalog: Catalog, names: list[str]) -> int:
    """`specchat pull NAME…`"""
    with Interrupt() as interrupt:
        for spec in [find(catalog, name) for name in names]:
            if spec.kind in WITHOUT_FILES:
                say(f"{spec.name} needs no files.")
            else:
                there = on_disk(spec)
                fetch(spec, interrupt)  # also checks, and mends, what is there
                say(f"{spec.name} is on this machine{' already' if there else ''} ({human(hub.disk_use(spec))}).")
    return 0


def rm(catalog: Catalog, names: list[str]) -> int:
    """`specchat rm NAME…`"""
    for spec in [find(catalog, name) for name in names]:
        if spec.path is not None:
            raise EngineError(f"{spec.path} is your own file, so it is left alone.", "Delete it yourself if you want to.", kind="config")
        freed = hub.remove(spec)
        say(f"{spec.name} removed, {human(freed)} freed." if freed else f"{spec.name} was not on this machine.")
    return 0
