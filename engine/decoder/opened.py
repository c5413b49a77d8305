"""A target opened from disk: the lean decoder where the architecture is known, transformers itself otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.catalog.specs import ModelSpec
from engine.cuda import place
from engine.cuda.tune import lean
from engine.decoder.load import load_weights
from engine.decoder.target import Target
from engine.decoder.tokenizer import Tokenizer, load_tokenizer, sampling_defaults
from engine.errors import EngineError
from engine.protocol import LoadOptions, Sampling

DEFAULT_CONTEXT = 32_768  # tokens, where nobody says and the model could do more


@dataclass(frozen=True, slots=True)
class Opened:
    """A target with what belongs to it."""

    target: Target
    tokenizer: Tokenizer
    sampling: Sampling
    device: torch.device
    scheme: str
    head_scheme: str
    notes: tuple[str, ...]


def open_target(
    spec: ModelSpec,
    path: Path,
    device: torch.device,
    options: LoadOptions,
    context: int,
    progress: Callable[[str, int, int], None],
    cancelled: Callable[[], bool],
) -> Opened:
    """Load tokenizer and weights. Raises EngineError."""
    tokenizer = load_tokenizer(path, spec.template)
    notes: list[str] = [*tokenizer.notes]
    quant, head = wish(options.quant, spec.quant), wish(options.head, spec.head)
    target: Target
    laid = place.needed(path, quant, head, context, device)  # over several cards
    try:
        if laid is not None:
            raise EngineError(f"{spec.name} is larger than one card.", kind="architecture")
        weights = load_weights(path, device=device, quant=quant, head=head, progress=progress, cancelled=cancelled, note=notes.append)
    except EngineError as error:
        if error.kind != "architecture":
            raise
        from engine.decoder.hf import open_hf

        notes.append(f"{error.message} {error.hint}".strip())
        target, scheme, head_scheme, more = open_hf(path, device, quant, context, laid)
        notes += more
    else:
        most = weights.config.max_position
        if options.context is not None and options.context > most:
            notes.append(f"{spec.name} was made for {most} tokens of context, so --context {options.context} becomes {most}.")
        target = lean(weights, min(context, most))
        scheme, head_scheme = weights.scheme, weights.head_scheme
    return Opened(target, tokenizer, sampling_defaults(path), device, scheme, head_scheme, tuple(notes))


def wish(asked: str, entry: str | None) -> str:
    """What the person asked for, else what the entry of the catalog says."""
    return asked if asked != "auto" else entry or "auto"
