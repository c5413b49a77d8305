"""From a drafter's entry to a running drafter: the one place that knows all kinds. A new kind is one branch here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from engine.catalog import catalog, hub, measured
from engine.catalog.specs import NGRAM, NONE, ModelSpec
from engine.decoder.load import load_weights
from engine.decoder.target import LeanTarget
from engine.decoder.tokenizer import Tokenizer, difference, load_tokenizer
from engine.drafters.model import ModelDrafter
from engine.drafters.ngram import LONG, Ngram
from engine.drafters.stacked import Stacked
from engine.errors import EngineError
from engine.protocol import LoadOptions
from engine.speculation.draft import Drafter

LARGEST_SHARE = 0.5  # `auto` never takes a drafter of more than this share of the target's size
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Beside:
    """The target that a drafter is for."""

    spec: ModelSpec
    tokenizer: Tokenizer
    vocab_size: int
    context: int
    device: torch.device
    quant: str


@dataclass(frozen=True, slots=True)
class Built:
    """A drafter, what it runs on, and what the person should know."""

    drafter: Drafter | None
    quant: str = ""
    notes: tuple[str, ...] = field(default=())


def build(
    spec: ModelSpec,
    method: str,
    beside: Beside,
    device: torch.device,
    options: LoadOptions,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Built:
    """Make the drafter. Raises EngineError: unknown kind, another vocabulary, no weights, no memory."""
    if spec.kind == "none":
        return Built(None)
    if spec.kind == "ngram":
        _only(method, "ngram", spec)
        return Built(Ngram(spec.name, spec.min_match, spec.max_match))
    if spec.kind == "auto":
        best, notes = choose(beside)
        if best.kind != "model":
            return replace(build(best, "auto", beside, device, options), notes=notes)
        try:
            built = build(best, "auto", beside, device, options, progress, cancelled)
        except EngineError as error:
            if error.kind == "cancelled":
                raise
            note = f"{best.name} could not be loaded, so the drafter is ngram. {error.message}"
            return Built(Ngram(NGRAM.name, NGRAM.min_match, NGRAM.max_match), "", (*notes, note))
        assert built.drafter is not None
        front = Ngram("ngram", LONG, NGRAM.max_match)  # only where it has a long match
        return Built(Stacked([front, built.drafter]), built.quant, notes + built.notes)
    if spec.kind == "heads":
        raise EngineError(
            f"{spec.name} is a set of draft heads, which this version cannot run.",
            "Choose a small model as drafter, or ngram.",
            kind="architecture",
        )
    _only(method, "model", spec)
    return _model(spec, beside, device, options, progress, cancelled)


def _only(method: str, own: str, spec: ModelSpec) -> None:
    if method not in ("auto", own):
        raise EngineError(
            f"The method {method} does not go with the drafter {spec.name}.", f"Leave out --method, or use --method {own}.", kind="config"
        )


def _model(
    spec: ModelSpec,
    beside: Beside,
    device: torch.device,
    options: LoadOptions,
    progress: Progress | None,
    cancelled: Callable[[], bool] | None,
) -> Built:
    path = where(spec)
    tokenizer = load_tokenizer(path, spec.template)
    reason = difference(beside.tokenizer, tokenizer)
    if reason is not None:
        raise EngineError(
            f"{spec.name} has another vocabulary than {beside.spec.name}: {reason}.",
            "A drafter with another tokenizer needs the bridge between tokenizers, which this version lacks. "
            "Choose one of the same family, or ngram.",
            kind="vocabulary",
        )
    notes: list[str] = []
    quant = options.draft_quant if options.draft_quant != "auto" else beside.quant
    weights = load_weights(path, device=device, quant=quant, head="auto", progress=progress, cancelled=cancelled, note=notes.append)
    runner = LeanTarget(weights, min(beside.context, weights.config.max_position))
    return Built(ModelDrafter(spec.name, runner, beside.vocab_size), weights.scheme, tuple(notes))


def where(spec: ModelSpec) -> Path:
    """The model's place on this machine. EngineError when it is not here."""
    path = hub.locate(spec)
    if path is None and spec.path:
        raise EngineError(f"There is nothing at {spec.path}.", "Check the path.", kind="missing_weights")
    if path is None:
        raise EngineError(f"{spec.name} is not on this machine.", f"Run: specchat pull {spec.name}", kind="missing_weights")
    return path


def choose(beside: Beside) -> tuple[ModelSpec, tuple[str, ...]]:
    """What `auto` means for a target: the best drafter that is on disk, by measured, else estimated speed. Never a download."""
    try:
        candidates = catalog.load().drafters_for(beside.spec)
    except EngineError as error:
        return NGRAM, (f"{error.message} The drafter is ngram.",)
    speedups = measured.recall(beside.spec.name, beside.quant, beside.device.type)
    best: tuple[float, ModelSpec] = (speedups.get("ngram", 1.0), NGRAM)
    for spec in candidates:
        if spec.kind != "model" or (beside.spec.params and spec.params > LARGEST_SHARE * beside.spec.params):
            continue
        expected = speedups.get(f"ngram+{spec.name}", speedups.get(spec.name, 1.4 - spec.params / (beside.spec.params or 1e3)))
        if expected <= best[0]:
            continue
        if _shares_vocabulary(spec, beside):
            best = (expected, spec)
    return best[1], ()


def _shares_vocabulary(spec: ModelSpec, beside: Beside) -> bool:
    path = hub.locate(spec)
    try:
        return path is not None and difference(beside.tokenizer, load_tokenizer(path, spec.template)) is None
    except EngineError:  # a damaged one is no choice
        return False


def describe(drafter: Drafter | None) -> tuple[str, str]:
    """(name, method) for people and programs."""
    return (drafter.name, drafter.method) if drafter is not None else (NONE.name, "none")
