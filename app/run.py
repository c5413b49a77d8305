"""`specchat run`: one answer, streamed to stdout or as one JSON object; everything else goes to stderr."""

from __future__ import annotations

import os
import secrets
import stat
import sys
import threading
from dataclasses import asdict
from typing import Any

from app.choose import Choice, choose, heads_as_drafter, remember
from app.console import STOPPED, Interrupt, Ticker, emit, emit_json, is_terminal, say
from app.driver import Answer, Driver
from app.options import RUN_MAX_TOKENS, Options, is_unicode
from app.pull import ensure
from app.seeds import reply_seed
from engine.catalog import catalog
from engine.client import Client, EngineClient
from engine.errors import EngineError
from engine.protocol import Generate, Load, Loading, Message, Prefill, Ready, Step
from engine.stats import Tally
from engine.words import counted

READ_NOTE_S = 2.0
LOAD_NOTE_S = 5.0  # a shorter load says nothing where stderr is no terminal
SEED_BITS = 31  # short enough to type, and exact in every JSON reader; the noise itself is keyed by 63 mixed bits


def fresh_seed() -> int:
    """A seed for a person who gave none; the same number after `--seed` gives the same text."""
    return secrets.randbits(SEED_BITS)


def run(options: Options, prompt: str, *, as_json: bool = False, client: Client | None = None) -> int:
    """Answer once; returns the exit code. `client` is the engine to use, a real one by default."""
    seed = fresh_seed() if options.seed is None else options.seed
    with Interrupt() as interrupt:
        choice: Choice | None = None
        ready: Ready | None = None
        engine = client
        try:
            models = catalog.load()
            options = heads_as_drafter(options, models)
            choice = choose(options, models)
            ensure(choice.target, interrupt, offline=options.offline, named=choice.named)
            ensure(choice.drafter, interrupt, offline=options.offline, option="-d")
            engine = engine or EngineClient()
            driver = Driver(engine, interrupt, lambda text: say(f"note: {text}"))
            ready = _load(driver, options, choice)
            if warning := remember(options, choice):
                say(f"note: {warning}")
            answer = _reply(driver, options, ready, prompt, seed, stream=not as_json)
        except EngineError as error:
            if error.kind != "cancelled":
                raise
            if as_json:
                emit_json(result(options, choice, ready, None, seed))
            return STOPPED
        finally:
            if engine is not None:
                engine.close(interrupt.close_s)
    if as_json:
        emit_json(result(options, choice, ready, answer, seed))
    elif is_terminal(sys.stdout) and not answer.done.text.endswith("\n"):
        emit("\n")
    if is_terminal(sys.stderr):
        say(stats_line(answer))
    if options.seed is None:
        say(f"seed {seed}")
    return STOPPED if answer.done.finish_reason == "cancelled" else 0


def _load(driver: Driver, options: Options, choice: Choice) -> Ready:
    ticker = Ticker(patience_s=LOAD_NOTE_S)

    def progress(event: Loading) -> None:
        ticker.show(event.stage, loading_line(event))

    try:
        return driver.load(Load(choice.target, choice.drafter, options.load_options(), options.method), progress)
    finally:
        ticker.clear()


def _reply(driver: Driver, options: Options, ready: Ready, prompt: str, seed: int, stream: bool) -> Answer:
    ticker = Ticker()
    begun = False

    def progress(event: Prefill | Step) -> None:
        if isinstance(event, Prefill) and is_terminal(sys.stderr):
            ticker.show("read", f"reading the prompt: {event.done:,} of {counted(event.total, 'token')}")

    def text(new: str) -> None:
        nonlocal begun
        ticker.clear()
        if stream:
            emit(new)
            begun = True

    try:
        return driver.reply(generate(options, prompt, reply_seed(seed, 0, 0)), ready, text, progress)
    except EngineError:
        if begun and is_terminal(sys.stdout):
            emit("\n")  # what was written stays, and the error begins on a line of its own
        raise
    finally:
        ticker.clear()


def generate(options: Options, prompt: str, seed: int, reply: int = 1) -> Generate:
    """The command for one prompt without a history."""
    system = (Message("system", options.system),) if options.system else ()
    return Generate(
        reply,
        messages=() if options.raw else (*system, Message("user", prompt)),
        raw=prompt if options.raw else None,
        sampling=options.sampling(),
        seed=seed,
        max_tokens=options.max_tokens or RUN_MAX_TOKENS,
        stop=tuple(options.stop or ()),
        k=options.k,
        verify=options.verify,
        strict=options.strict,
    )


def result(options: Options, choice: Choice | None, ready: Ready | None, answer: Answer | None, seed: int) -> dict[str, Any]:
    """The object of `run --json`. What was not known yet when the command was stopped is null."""
    done = answer.done if answer else None
    return {
        "target": ready.target if ready else choice.target.name if choice else None,
        "drafter": done.drafter if done else ready.drafter if ready else choice.drafter.name if choice else None,
        "method": done.method if done else ready.method if ready else None,
        "device": ready.device if ready else None,
        "quant": ready.quant if ready else None,
        "head": ready.head if ready else None,
        "seed": seed,
        "k": options.k,
        "prompt_tokens": done.prompt_tokens if done else 0,
        "reused_tokens": done.reused_tokens if done else 0,
        "tokens": len(done.token_ids) if done else 0,
        "token_ids": list(done.token_ids) if done else [],
        "text": done.text if done else "",
        "finish_reason": done.finish_reason if done else "cancelled",
        "stats": asdict(answer.stats if answer else Tally().stats()),
        "segments": [
            {"text": segment.text, "origin": segment.origin, "token_ids": list(segment.token_ids)}
            for segment in (answer.segments if answer else ())
        ],
    }


def stats_line(answer: Answer) -> str:
    """The numbers of a reply on one line."""
    stats, done = answer.stats, answer.done
    parts = [counted(len(done.token_ids), "token"), f"{stats.tok_per_s:.1f} tok/s", f"TTFT {stats.ttft_s:.2f} s", f"tau {stats.tau:.2f}"]
    if stats.drafted:
        parts.append(f"kept {stats.kept:.0%}")
    parts.append("plain" if done.method == "none" else done.drafter if done.method == done.drafter else f"{done.drafter} ({done.method})")
    if done.finish_reason != "stop":
        parts.append({"length": "cut at --max-tokens", "context": "the context is full", "cancelled": "stopped"}[done.finish_reason])
    return " · ".join(parts)


def loading_line(event: Loading) -> str:
    """A stage of loading, with how far it is where that is known."""
    if event.total <= 0:
        return event.stage
    if event.unit in ("bytes", "B"):
        from engine.catalog.progress import human

        return f"{event.stage}: {human(event.done)} of {human(event.total)}"
    return f"{event.stage}: {event.done} of {event.total} {event.unit}".rstrip()


def full_prompt(argument: str | None, raw: bool) -> str | None:
    """The prompt from the argument, from stdin (`-`, or piped), or from both with a blank line between; None when there is none."""
    if argument is not None and not is_unicode(argument):
        raise EngineError("The prompt is not valid UTF-8.", "Check the encoding of your terminal (the locale).", kind="encoding")
    if argument == "-":
        given, piped = "", _read_stdin(raw)
    else:
        given, piped = argument or "", _read_stdin(raw) if _is_piped() else ""
    parts = [part for part in (given, piped) if part]
    return "\n\n".join(parts) if any(part.strip() for part in parts) else None


def _is_piped() -> bool:
    """True when text may come on stdin: a pipe, a file or a socket; neither a terminal nor `/dev/null`."""
    if sys.stdin is None or sys.stdin.closed or is_terminal(sys.stdin):
        return False
    try:
        return not stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError):
        return True  # a stand-in without a file behind it


def _read_stdin(raw: bool) -> str:
    if sys.stdin is None or sys.stdin.closed:
        return ""
    # Someone may have started us with a pipe that never ends: say what we wait for.
    note = threading.Timer(READ_NOTE_S, say, ["reading standard input until it ends (use < /dev/null when there is none)"])
    note.daemon = True
    note.start()
    try:
        data = sys.stdin.buffer.read()
    finally:
        note.cancel()
    try:
        text = data.decode("utf-8-sig")  # a mark at the front, as some Windows tools write it, is no text
    except UnicodeDecodeError as error:
        raise EngineError(
            f"The text on standard input is not valid UTF-8 (byte 0x{data[error.start]:02x} at position {error.start}).",
            "Convert it first, for example with `iconv -f latin1 -t utf-8`.",
            kind="encoding",
        ) from error
    return text if raw else text.removesuffix("\n").removesuffix("\r")
