"""From a drafter's entry to a running drafter: the one place that knows all kinds. A new kind is one branch here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from engine.catalog import bindings, catalog, hub, measured, stored
from engine.catalog.specs import NGRAM, NONE, ModelSpec
from engine.cuda.tune import lean
from engine.decoder.load import load_weights
from engine.decoder.target import Target
from engine.decoder.tokenizer import Tokenizer, difference, load_tokenizer
from engine.drafters.bridged import METHODS, Pair
from engine.drafters.heads.build import open_heads
from engine.drafters.model import ModelDrafter
from engine.drafters.ngram import LONG, Ngram
from engine.drafters.stacked import Stacked
from engine.errors import EngineError
from engine.protocol import LoadOptions
from engine.speculation.draft import Drafter

LARGEST_SHARE = 0.5  # `auto` never takes a drafter of more than this share of the target's size
PAYS = 1.4  # what a very small drafter is expected to bring
SAME_COSTS, BRIDGED_COSTS = 1.0, 2.0  # … less its share of the target's size, twice that with another vocabulary: 1.22 for 135M, seen 1.31
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
    temperature: float = 0.0  # of a reply without wishes of its own
    target: Target | None = None  # itself: draft heads read its hidden states and use its LM head


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
            built = build(best, method if method in METHODS else "auto", beside, device, options, progress, cancelled)
        except EngineError as error:
            if error.kind == "cancelled":
                raise
            note = f"{best.name} could not be loaded, so the drafter is ngram. {error.message}"
            return Built(Ngram(NGRAM.name, NGRAM.min_match, NGRAM.max_match), "", (*notes, note))
        assert built.drafter is not None
        front = Ngram("ngram", LONG, NGRAM.max_match)  # only where it has a long match
        return Built(Stacked([front, built.drafter]), built.quant, notes + built.notes)
    spec = stored.settled(spec)  # by a folder or a hub id: only its files say what it is
    if spec.kind == "heads":
        bindings.require(spec, beside.spec)
        quant = options.draft_quant if options.draft_quant != "auto" else spec.quant or beside.quant
        place, target = stored.where(spec), beside.target
        drafter, scheme, told = open_heads(spec.name, place, method, target, quant, progress, cancelled, beside.spec.name)
        if device != beside.device:
            told = (*told, f"{spec.name} runs on {beside.device}, where its target is: draft heads read the target's hidden states.")
        return Built(drafter, scheme, told)
    if method not in METHODS:
        _only(method, "model", spec)
    return _model(spec, method, beside, device, options, progress, cancelled)


def _only(method: str, own: str, spec: ModelSpec) -> None:
    if method not in ("auto", own):
        raise EngineError(
            f"The method {method} does not go with the drafter {spec.name}.", f"Leave out --method, or use --method {own}.", kind="config"
        )


def _model(
    spec: ModelSpec,
    method: str,
    beside: Beside,
    device: torch.device,
    options: LoadOptions,
    progress: Progress | None,
    cancelled: Callable[[], bool] | None,
) -> Built:
    path = stored.where(spec)
    tokenizer = load_tokenizer(path, spec.template)
    pair = _pair(spec, method, beside, tokenizer, path)
    notes: list[str] = []
    quant = options.draft_quant
    if quant == "auto" and beside.quant != "nf4":  # beside a 4-bit target the drafter's own size decides
        quant = beside.quant
    weights = load_weights(path, device=device, quant=quant, head="auto", progress=progress, cancelled=cancelled, note=notes.append)
    runner = lean(weights, min(beside.context, weights.config.max_position), exactly=False)
    if pair is None:
        return Built(ModelDrafter(spec.name, runner, beside.vocab_size), weights.scheme, tuple(notes))
    drafter = pair.drafts(method, runner, beside.temperature)
    notes += pair.notes(method, hub.locate(beside.spec), path, runner, beside.context)
    return Built(drafter, weights.scheme, tuple(notes))


def _pair(spec: ModelSpec, method: str, beside: Beside, tokenizer: Tokenizer, path: Path) -> Pair | None:
    """The bridge between two tokenizers, where one is needed or wished for."""
    if method not in METHODS:
        reason = difference(beside.tokenizer, tokenizer)
        if reason is None:
            return None
        if method == "model":
            raise EngineError(
                f"{spec.name} has another vocabulary than {beside.spec.name}: {reason}.",
                "Leave out --method model: drafts are then translated from one tokenizer to the other.",
                kind="vocabulary",
            )
    return Pair(beside.spec, beside.tokenizer, beside.vocab_size, spec, tokenizer, path)


def choose(beside: Beside) -> tuple[ModelSpec, tuple[str, ...]]:
    """What `auto` means for a target: the best drafter that is on disk, by measured, else estimated speed. Never a download."""
    try:
        candidates = catalog.load().drafters_for(beside.spec)
    except EngineError as error:
        return NGRAM, (f"{error.message} The drafter is ngram.",)
    speedups = measured.recall(beside.spec.name, beside.quant, beside.device.type)
    best: tuple[float, ModelSpec] = (speedups.get("ngram", 1.0), NGRAM)
    front = max(best[0] - 1.0, 0.0) / 2  # what look-up in front of a model adds, as long as nobody has measured both
    for spec in candidates:
        if spec.kind != "model" or (beside.spec.params and spec.params > LARGEST_SHARE * beside.spec.params):
            continue
        share = spec.params / (beside.spec.params or 1e3)
        known = speedups.get(f"ngram+{spec.name}", speedups.get(spec.name))
        relative, stranger = (PAYS - cost * share + front for cost in (SAME_COSTS, BRIDGED_COSTS))
        if (known or relative) <= best[0]:
            continue
        same = _shares_vocabulary(spec, beside)
        expected = known or (relative if same else stranger)
        if same is not None and expected > best[0]:
            best = (expected, spec)
    return best[1], ()


def _shares_vocabulary(spec: ModelSpec, beside: Beside) -> bool | None:
    """Whether drafts need no translation; None where the model is not here or cannot draft at all."""
    path = hub.locate(spec)
    if path is None:
        return None
    try:
        return _pair(spec, "auto", beside, load_tokenizer(path, spec.template), path) is None
    except EngineError:  # a damaged one, or one that is not sound, is no choice
        return None


def describe(drafter: Drafter | None) -> tuple[str, str]:
    """(name, method) for people and programs."""
    return (drafter.name, drafter.method) if drafter is not None else (NONE.name, "none")
