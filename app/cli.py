"""The command `specchat`: what each word on the command line does. Modules are imported when their command runs.

Exit codes: 0 done, 1 an error, 2 wrong usage, 129 the terminal of the chat is gone, 130 stopped with Ctrl+C.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from app.options import Options, with_options
from app.train_options import LEFT_OUT, train

UsageError: Any = typer.BadParameter.__mro__[1]
ClickError: Any = typer.BadParameter.__mro__[2]  # the base of all parser errors, wherever Typer takes them from
USAGE = 2
COMMANDS = ("run", "bench", "compare", "pull", "rm", "models", "check", "train", "doctor")
PROMPTS_HELP = "A JSONL file, or sets: mixed, code, reasoning, story, rewriting, questions, multilingual, all."
JSON_FLAG = typer.Option("--json", help="Print one JSON object on stdout and nothing else.")

cli = typer.Typer(
    name="specchat",
    epilog="Examples:  specchat  ·  specchat run 'Why is the sky blue?'  ·  cat notes.txt | specchat run 'Summarise:'",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"specchat {version('specchat')}")
        raise typer.Exit


def chat(
    ctx: typer.Context,
    options: Options,
    last: Annotated[bool, typer.Option("--continue", help="Open the last chat.")] = False,
    saved: Annotated[
        str | None, typer.Option("--chat", metavar="CHAT", help="Open a saved chat: its number, or words of its title.")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Look around without a model: a recording behind the same screens.")] = False,
    json: Annotated[bool, JSON_FLAG] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Chat with a local language model, made faster by drafters that do not change its text.

    Without a command it opens the chat; text piped into it is answered as `specchat run` does.
    """
    if last and saved is not None:
        raise UsageError("Use --continue or --chat, not both.")
    resume = "" if last else saved
    if ctx.invoked_subcommand is not None:
        if demo:
            raise UsageError("--demo opens the chat; it has no meaning with a command.")
        if resume is not None:
            raise UsageError("--continue and --chat open a chat; they have no meaning with a command.")
        return
    from app.console import is_terminal

    terminal = is_terminal(sys.stdin) and is_terminal(sys.stdout) and not json
    if demo and not terminal:
        raise UsageError("--demo needs a terminal.")
    if terminal:
        gc.disable()  # what is imported stays: to search it for garbage costs 30 ms; `SpecChat.on_ready` ends this
        try:
            raise typer.Exit(_open_demo() if demo else _open_chat(options, resume))
        finally:
            gc.enable()
    from app.run import full_prompt, run

    prompt = None if is_terminal(sys.stdin) else full_prompt(None, options.raw)
    if prompt is None:
        raise UsageError("The chat needs a terminal, and no text came on standard input. Use: specchat run 'PROMPT'.")
    raise typer.Exit(run(options, prompt, as_json=json))


def _open_demo() -> int:
    from app.demo import demo
    from app.tui import run_chat

    return int(run_chat(*demo()) or 0)


def _open_chat(options: Options, resume: str | None) -> int:
    if options.raw:
        raise UsageError("--raw has no meaning in the chat. Use: specchat run --raw 'PROMPT'.")
    from app.choose import chat_options
    from app.tui import run_chat

    return int(run_chat(chat_options(options, resume)) or 0)


def run(
    ctx: typer.Context,
    options: Options,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The question; `-`, or nothing, reads standard input. Both are joined.")
    ] = None,
    json: Annotated[bool, JSON_FLAG] = False,
) -> None:
    """Answer one prompt on standard output."""
    from app.run import full_prompt
    from app.run import run as answer

    text = full_prompt(prompt, options.raw)
    if text is None:
        raise UsageError("There is no prompt. Use: specchat run 'PROMPT', or pipe text into it.")
    raise typer.Exit(answer(options, text, as_json=json or _json_before(ctx)))


def _json_before(ctx: typer.Context) -> bool:
    """`specchat --json run …` means the same as `specchat run --json …`."""
    return bool(ctx.parent and ctx.parent.params.get("json"))


def bench(
    ctx: typer.Context,
    options: Options,
    drafter: Annotated[
        list[str] | None,
        typer.Option("--drafter", "-d", metavar="MODEL", help="A drafter to measure; repeatable. Default: ngram and those on disk."),
    ] = None,
    prompts: Annotated[str, typer.Option("--prompts", metavar="FILE", help=PROMPTS_HELP)] = "mixed",
    repeat: Annotated[int, typer.Option("--repeat", min=1, metavar="N", help="Rounds over all prompts.")] = 1,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write everything to this file.")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the rows to this file.")] = None,
    md: Annotated[Path | None, typer.Option("--md", metavar="FILE", help="Write the report as Markdown to this file.")] = None,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Write a picture to this file.")] = None,
) -> None:
    """Measure drafters against plain decoding: same prompts, same seeds, texts compared. The result is kept, too."""
    from app.bench_command import bench as measure

    code = measure(options, drafter or (), prompts=prompts, repeat=repeat, json_file=json, csv_file=csv, markdown_file=md, svg_file=svg)
    raise typer.Exit(code)


def compare(
    ctx: typer.Context,
    options: Options,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The question; `-`, or nothing, reads standard input. Both are joined.")
    ] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option("--drafter", "-d", metavar="MODEL", help="A drafter to race; up to three. Default: ngram and those on disk."),
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, metavar="N", help="Run each lane so many times.")] = 1,
    json: Annotated[bool, JSON_FLAG] = False,
) -> None:
    """Race drafters on one prompt, one after the other, and check that all texts are the same."""
    from app.compare_command import run_compare
    from app.run import full_prompt

    text = full_prompt(prompt, options.raw)
    if text is None:
        raise UsageError("There is no prompt. Use: specchat compare 'PROMPT' -d ngram, or pipe text into it.")
    raise typer.Exit(run_compare(options, drafter or (), text, repeat=repeat, as_json=json or _json_before(ctx)))


def pull(names: Annotated[list[str], typer.Argument(metavar="NAME…", help="A name from `specchat models`, or a hub id.")]) -> None:
    """Download models; what is there already is not fetched again."""
    from app.pull import pull as fetch
    from engine.catalog.catalog import load

    raise typer.Exit(fetch(load(), names))


def rm(names: Annotated[list[str], typer.Argument(metavar="NAME…", help="A name from `specchat models`, or a hub id.")]) -> None:
    """Delete downloaded models from this machine."""
    from app.pull import rm as remove
    from engine.catalog.catalog import load

    raise typer.Exit(remove(load(), names))


def models(json: Annotated[bool, JSON_FLAG] = False) -> None:
    """List targets and drafters: on disk or not, size, licence, what goes with what."""
    from app.models import show

    raise typer.Exit(show(as_json=json))


def check(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A name, a hub id in the cache, a folder or a .gguf; no weights needed.")],
    drafter: Annotated[str, typer.Argument(metavar="DRAFTER", help="The same.")],
    json: Annotated[bool, JSON_FLAG] = False,
) -> None:
    """Do two models' tokenizers go together, how well, by which method, or why not?"""
    from app.check import show

    raise typer.Exit(show(target, drafter, as_json=json))


def doctor(json: Annotated[bool, JSON_FLAG] = False) -> None:
    """Look at this machine: hardware, versions, what is possible, what to install."""
    from app.doctor import show

    raise typer.Exit(show(as_json=json))


cli.callback(invoke_without_command=True)(with_options(chat))
for _command in (
    with_options(run),
    with_options(bench, leave_out=("drafter",)),
    with_options(compare, leave_out=("drafter",)),
    pull,
    rm,
    models,
    check,
    with_options(train, leave_out=LEFT_OUT),
    doctor,
):
    cli.command()(_command)


def invoke(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code. Every error becomes one sentence."""
    from app import console
    from engine.errors import EngineError

    command = next((word for word in arguments if word in COMMANDS), None)
    as_json = "--json" in arguments and command != "bench"  # there it names a file
    try:
        return int(cli(args=list(arguments), prog_name="specchat", standalone_mode=False) or 0)
    except ClickError as error:
        _usage(error)
        if as_json:
            console.emit_json(console.error_object(EngineError(error.format_message(), kind="usage")))
        return USAGE
    except (KeyboardInterrupt, typer.Abort):
        return console.STOPPED
    except (console.OutputClosed, BrokenPipeError):
        console.silence_stdout()
        return 0
    except EngineError as error:
        return _failed(error, as_json)
    except Exception as error:  # the last resort: a sentence instead of a traceback
        return _failed(console.unexpected(error), as_json)


def _failed(error: Any, as_json: bool) -> int:
    from app import console

    try:
        console.report(error, as_json)
    except console.OutputClosed:
        console.silence_stdout()
    return 1


def _usage(error: Any) -> None:
    """One sentence and where to read more, without the parser's frame around it."""
    from app.console import say

    message = error.format_message().strip()
    say(f"error: {message}" + ("" if message.endswith((".", "?", "!")) else "."))
    ctx = getattr(error, "ctx", None)
    question = " To ask the model something: specchat run 'PROMPT'." if "No such command" in message else ""
    say(f"hint: `{ctx.command_path if ctx else 'specchat'} --help` lists what is possible.{question}")


def main() -> None:
    """The entry point of the installed command."""
    from app.console import log_threads, log_to_file

    log_to_file()
    log_threads()
    code = invoke(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            pass
    if any(thread.name.startswith("specchat-") for thread in threading.enumerate()):
        os._exit(code)  # a thread inside a long tensor call cannot be ended in order, and nothing is left to save
    sys.exit(code)
