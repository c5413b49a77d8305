"""The options that all commands share, declared once: the Typer declarations, the checks, and what they mean to the engine.

A command decorated by `with_options` gets them all as one `Options`. Options given before a sub-command count for it too.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_type_hints

import typer

from engine.protocol import LoadOptions, Sampling, Verify

Quant = Literal["auto", "nf4", "int8", "bf16", "fp16", "fp32"]
Method = Literal[
    "auto", "none", "ngram", "model", "slem", "tli", "pf", "slrs",
    "medusa", "hydra", "hydra++", "eagle1", "eagle2", "eagle3", "gumiho", "gumiho-corrected",
]  # fmt: skip

RUN_MAX_TOKENS = 512
SEED_LIMIT = 2**63
TARGET_HELP = "The model whose text you get: a name, a hub id, a folder or a .gguf file."
DRAFTER_HELP = "What proposes tokens: none, ngram, auto, a name, a hub id, a folder or a .gguf file."
VERIFY_HELP = "match: a seed gives the same text with any drafter. ratio: the papers' own rule, the same law but other text."
MAX_TOKENS_HELP = f"Longest reply. Default: to the end of the context in the chat, {RUN_MAX_TOKENS} elsewhere."
MODELS, SPECULATION, SAMPLING, PROMPT = "Models", "Speculation", "Sampling", "Prompt and reply"


def is_unicode(text: str) -> bool:
    """False for arguments that were no valid UTF-8: Python hands them over with lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", value):
        raise typer.BadParameter(f"{value!r} is not one of 'auto', 'cpu', 'mps', 'cuda', 'cuda:N'.")
    return value


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number that can be used here.")
    return value


def _seed(value: int | None) -> int | None:
    if value is not None and not 0 <= value < SEED_LIMIT:
        raise typer.BadParameter(f"{value} is not a whole number from 0 to {SEED_LIMIT - 1}.")
    return value


def _above_zero(value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise typer.BadParameter(f"{value} is not in the range x>0.")
    return value


def _share(value: float | None) -> float | None:
    if value is not None and not 0 < value <= 1:
        raise typer.BadParameter(f"{value} is not in the range 0<x<=1.")
    return value


def _not_empty(value: list[str] | None) -> list[str] | None:
    if value and not all(value):
        raise typer.BadParameter("a stop text must not be empty.")
    return value


def _option(panel: str, *names: str, **how: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, **how)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the person asked for on the command line; `None` means not given."""

    target: Annotated[
        str | None,
        _option(MODELS, "--target", "-t", metavar="MODEL", help=f"{TARGET_HELP} Default: the last used, else by hardware."),
    ] = None
    drafter: Annotated[str, _option(MODELS, "--drafter", "-d", metavar="MODEL", help=DRAFTER_HELP)] = "auto"
    quant: Annotated[Quant, _option(MODELS, "--quant", help="Weights of the target.")] = "auto"
    head: Annotated[Quant, _option(MODELS, "--head", help="Weights of the target's output layer.")] = "auto"
    draft_quant: Annotated[Quant, _option(MODELS, "--draft-quant", help="Weights of the drafter.")] = "auto"
    device: Annotated[str, _option(MODELS, "--device", metavar="DEVICE", callback=_device, help="auto, cpu, mps, cuda or cuda:N.")] = "auto"
    draft_device: Annotated[
        str, _option(MODELS, "--draft-device", metavar="DEVICE", callback=_device, help="The same for the drafter.")
    ] = "auto"
    context: Annotated[
        int | None, _option(MODELS, "--context", metavar="TOKENS", min=1, help="Longest context. Default: the model's own.")
    ] = None
    offline: Annotated[bool, _option(MODELS, "--offline", help="Never download anything.")] = False
    method: Annotated[Method, _option(SPECULATION, "--method", help="How the drafter is used; auto picks what is sound.")] = "auto"
    verify: Annotated[Verify, _option(SPECULATION, "--verify", help=VERIFY_HELP)] = "match"
    strict: Annotated[bool, _option(SPECULATION, "--strict", help="Remove even floating-point near-ties; slower on some devices.")] = False
    k: Annotated[int | None, _option(SPECULATION, "--k", metavar="N", min=0, max=64, help="Always draft N tokens. Default: live.")] = None
    temp: Annotated[
        float | None, _option(SAMPLING, "--temp", metavar="X", min=0.0, callback=_finite, help="Temperature; 0 takes the likeliest token.")
    ] = None
    top_p: Annotated[
        float | None, _option(SAMPLING, "--top-p", metavar="X", callback=_share, help="Keep the likeliest tokens up to this share.")
    ] = None
    top_k: Annotated[int | None, _option(SAMPLING, "--top-k", metavar="N", min=0, help="Keep the N likeliest; 0 keeps all.")] = None
    min_p: Annotated[
        float | None, _option(SAMPLING, "--min-p", metavar="X", min=0.0, max=1.0, help="Drop tokens below this share of the likeliest.")
    ] = None
    repeat_penalty: Annotated[
        float | None, _option(SAMPLING, "--repeat-penalty", metavar="X", callback=_above_zero, help="Above 1 makes repetition rarer.")
    ] = None
    seed: Annotated[int | None, _option(SAMPLING, "--seed", metavar="N", callback=_seed, help="Same seed, same text. Default: random.")] = (
        None
    )
    system: Annotated[str | None, _option(PROMPT, "--system", metavar="TEXT", help="The system prompt.")] = None
    max_tokens: Annotated[int | None, _option(PROMPT, "--max-tokens", metavar="N", min=1, help=MAX_TOKENS_HELP)] = None
    stop: Annotated[
        list[str] | None,
        _option(PROMPT, "--stop", metavar="TEXT", callback=_not_empty, help="End the reply before this text; repeatable."),
    ] = None
    raw: Annotated[bool, _option(PROMPT, "--raw", help="Continue the prompt as it is: no chat template.")] = False

    def sampling(self) -> Sampling:
        """The sampling wishes; what was not given is left to the model."""
        return Sampling(self.temp, self.top_p, self.top_k, self.min_p, self.repeat_penalty)

    def load_options(self) -> LoadOptions:
        """How to put the models on the machine."""
        return LoadOptions(self.device, self.draft_device, self.quant, self.head, self.draft_quant, self.context)

    def check(self) -> None:
        """What no single option can check; raises a usage error."""
        for text in (self.target, self.drafter, self.system, *(self.stop or ())):
            if text is not None and not is_unicode(text):
                raise typer.BadParameter(f"{text!r} is not valid UTF-8.")
        if self.raw and self.system is not None:
            raise typer.BadParameter("--raw sends the prompt as it is, so --system cannot be used with it.")


def with_options(command: Callable[..., Any], *, leave_out: Collection[str] = ()) -> Callable[..., Any]:
    """Give a Typer command the shared options; it receives them in its parameter `options`."""
    hints = get_type_hints(Options, include_extras=True)
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name not in ("options", "ctx")]
    shared = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
        for f in fields(Options)
        if f.name not in leave_out
    ]

    def wrapper(ctx: typer.Context, **given: Any) -> Any:
        values = {p.name: given.pop(p.name) for p in shared}
        options = Options(**{name: _inherited(ctx, name, value) for name, value in values.items()})
        options.check()
        return command(ctx=ctx, options=options, **given)

    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [context, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *shared]
    wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return wrapper


def _inherited(ctx: typer.Context, name: str, value: Any) -> Any:
    """The value given here, else the one given before the sub-command, else the default."""
    if ctx.parent is None or _given(ctx, name) or not _given(ctx.parent, name):
        return value
    return ctx.parent.params[name]


def _given(ctx: Any, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
