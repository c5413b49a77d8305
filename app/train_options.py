"""The command line of `specchat train`: its options, and what they are called. Modules are imported when the command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from app.options import Options

# shared options about drafting, sampling and prompts, which mean nothing while heads are trained
LEFT_OUT = (
    "drafter", "draft_quant", "draft_device", "method", "verify", "strict", "k", "temp", "top_p", "top_k", "min_p", "repeat_penalty",
    "system", "max_tokens", "stop", "raw",
)  # fmt: skip


def train(
    ctx: typer.Context,
    options: Options,
    kind: Annotated[
        Literal["hydra++", "gumiho", "medusa"], typer.Option("--kind", help="Which heads: hydra++ is the best start on a small target.")
    ] = "hydra++",
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where the heads go. Default: among your data.")] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="How you will call them. Default: TARGET-KIND.")] = None,
    hours: Annotated[
        float | None, typer.Option("--hours", min=0.01, metavar="H", help="Time for everything together. Default: 1, without --tokens.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", min=100, metavar="N", help="Tokens that the target writes to learn from. Default: by the time."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, metavar="N", help="Passes over the data. Default: by the time, else 8.")
    ] = None,
    heads: Annotated[int, typer.Option("--heads", min=1, max=8, metavar="N", help="Tokens drafted in a row.")] = 3,
    shortlist: Annotated[
        int | None, typer.Option("--shortlist", min=0, metavar="N", help="Tokens that may be drafted; 0 = all. Default: by the device.")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="FILE", help="Prompts of your own beside the bundled ones: a JSONL file.")
    ] = None,
    chats: Annotated[
        bool, typer.Option("--chats", help="Use the questions of your saved chats, too. Nothing leaves this machine.")
    ] = False,
    features: Annotated[
        Literal["auto", "bf16", "int8"], typer.Option("--features", help="How hidden states are kept on disk; int8 takes half the space.")
    ] = "auto",
    precision: Annotated[Literal["auto", "fp32", "bf16"], typer.Option("--precision", help="Numbers of the training itself.")] = "auto",
    lanes: Annotated[int, typer.Option("--lanes", min=1, max=256, metavar="N", help="Replies that the target writes at once.")] = 32,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the training in DIR where it was stopped.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Train anew from the data that are in DIR.")] = False,
    entry: Annotated[bool, typer.Option("--entry/--no-entry", help="Add the heads to your models.toml.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")] = False,
) -> None:
    """Make draft heads for a target of your own, tonight: it answers prompts, and the heads learn to guess it."""
    from app.train_command import run_training

    code = run_training(
        options, kind=kind, out=out, name=name, hours=hours, tokens=tokens, epochs=epochs, heads=heads, shortlist=shortlist, data=data,
        chats=chats, features=features, precision=precision, lanes=lanes, resume=resume, again=again, register=entry,
        as_json=json or bool(ctx.parent and ctx.parent.params.get("json")),
    )  # fmt: skip
    raise typer.Exit(code)
