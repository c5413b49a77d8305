"""`specchat train`: options to a plan, a live screen or plain lines on stderr, the result on stdout."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Protocol

from app import train
from app.choose import choose
from app.console import STOPPED, Interrupt, emit, emit_json, is_terminal, say
from app.options import Options
from app.prompts import read
from app.pull import ensure
from engine import places
from engine.catalog import catalog
from engine.catalog.specs import ModelSpec
from engine.errors import EngineError
from engine.protocol import Failed
from engine.training import entry
from engine.training.client import TrainClient
from engine.training.protocol import Answering, Event, Features, Kind, Learning, Plan, Precision, Stopped, Trained

LINE_EVERY_S = 15.0  # of a log, for what comes all the time
POLL_S = 0.2
STOP_WAIT_S = 120.0  # a checkpoint is written first
OWN_PROMPTS = 2000  # newest ones of the saved chats


class Client(Protocol):
    """What runs the training."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def wait(self, timeout_s: float) -> list[Event]: ...
    def close(self, timeout_s: float) -> None: ...
    @property
    def alive(self) -> bool: ...


class View(Protocol):
    """Where events are shown."""

    def show(self, event: Event) -> None: ...
    def close(self) -> None: ...


class Log:
    """Lines on stderr, where there is no terminal."""

    def __init__(self) -> None:
        self._last_s = {Answering: float("-inf"), Learning: float("-inf")}

    def show(self, event: Event) -> None:
        """Write what is worth a line."""
        now_s = time.monotonic()
        if isinstance(event, (Answering, Learning)):
            if now_s - self._last_s[type(event)] < LINE_EVERY_S:
                return
            self._last_s[type(event)] = now_s
        if (text := train.line(event)) is not None:
            say(text)

    def close(self) -> None:
        """Nothing is left open."""


def run_training(
    options: Options,
    *,
    kind: Kind = "hydra++",
    out: Path | None = None,
    name: str | None = None,
    hours: float | None = None,
    tokens: int | None = None,
    epochs: int | None = None,
    heads: int = 3,
    shortlist: int | None = None,
    data: str | None = None,
    chats: bool = False,
    features: Features = "auto",
    precision: Precision = "auto",
    lanes: int = 32,
    resume: bool = False,
    again: bool = False,
    register: bool = True,
    as_json: bool = False,
    client: Client | None = None,
) -> int:
    """Train; returns the exit code: 130 when stopped."""
    with Interrupt() as interrupt:
        choice = choose(options, catalog.load())
        ensure(choice.target, interrupt, offline=options.offline, named=choice.named)
        called = name or f"{choice.target.name.rpartition('/')[2]}-{kind}"
        plan = Plan(
            target=choice.target,
            out=_folder(out, called),
            kind=kind,
            name=called,
            options=options.load_options(),
            hours=hours,
            tokens=tokens,
            epochs=epochs,
            heads=heads,
            shortlist=shortlist,
            prompts=_prompts(data, chats),
            features=features,
            precision=precision,
            lanes=lanes,
            seed=1 if options.seed is None else options.seed,
            resume=resume or again,
            again=again,
            register=register,
        )
        _check_name(plan, choice.target)
        end = _watch(plan, client or TrainClient(plan), interrupt)
    if isinstance(end, Stopped):
        say(f"stopped. What was done is in {end.out}; the same command with --resume goes on.")
        return STOPPED
    if as_json:
        emit_json(train.as_json(end))
    else:
        emit(train.summary(end) + "\n")
    return 0


def _watch(plan: Plan, client: Client, interrupt: Interrupt) -> Trained | Stopped:
    """Show events until the last one. EngineError when the training failed."""
    view = _view(plan)
    interrupt.on_stop = client.stop
    give_up_s: float | None = None
    try:
        client.start()
        if interrupt.stopped.is_set():
            client.stop()
        while True:
            alive = client.alive
            events = client.wait(POLL_S)
            for event in events:
                if isinstance(event, Failed):
                    raise EngineError(event.message, event.hint, kind=event.kind, detail=event.detail, numbers=event.numbers)
                if isinstance(event, (Trained, Stopped)):
                    return event
                view.show(event)
            if interrupt.stopped.is_set():
                give_up_s = give_up_s or time.monotonic() + STOP_WAIT_S
                if time.monotonic() > give_up_s:
                    return Stopped(plan.out)
            if not alive and not events:
                raise EngineError("The training has ended unexpectedly.", "specchat.log says why; --resume goes on.", kind="internal")
    finally:
        view.close()
        client.close(interrupt.close_s)


def _view(plan: Plan) -> View:
    if not is_terminal(sys.stderr):
        return Log()
    from app.screens.train import Screen

    return Screen(train.State(plan))


def _folder(out: Path | None, name: str) -> Path:
    """Where the heads go."""
    if out is not None:
        return places.written(out).absolute()
    return places.data_dir() / "heads" / "".join(c if c.isalnum() or c in ".-_+" else "-" for c in name)


def _prompts(data: str | None, chats: bool) -> tuple[str, ...]:
    """The person's own prompts: of a file, and of the saved chats where that was asked for in so many words."""
    texts = [prompt.text for prompt in read(data)] if data is not None else []
    if chats:
        from app.database import FILE
        from app.store import Store

        path = places.data_dir() / FILE
        if path.exists():
            store = Store(path)
            try:
                texts += store.prompts(OWN_PROMPTS)
            finally:
                store.close()
    return tuple(dict.fromkeys(text for text in texts if text.strip()))


def _check_name(plan: Plan, target: ModelSpec) -> None:
    """A name that belongs to another model is an error now, not after an hour."""
    if plan.register and (free := entry.free_name(plan.name, plan.out)) != plan.name:
        raise EngineError(f"There is a model named {plan.name} already.", f"Choose another name, such as --name {free}.", kind="config")
