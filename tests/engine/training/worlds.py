"""Tiny targets, made-up texts and small seed sets for training tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.decoder.load import load_weights
from engine.decoder.target import LeanTarget
from engine.drafters.heads.specs import HeadSpec
from engine.training import network, seeds, sizes
from engine.training.losses import Taught
from engine.training.network import Network
from engine.training.protocol import Kind
from engine.training.seeds import Part, Seed
from engine.training.shards import TEACHER, Text
from tests.tiny import tiny_config, tiny_target

KINDS: tuple[Kind, ...] = ("hydra++", "gumiho", "medusa")
HELD_OUT = 4  # prompts of each part
TOKENS = 20  # of a reply, at most


def plain_target(seed: int = 1, vocab: int = 64, dtype: torch.dtype = torch.float32, window: int | None = None) -> LeanTarget:
    """A random target in memory."""
    return tiny_target(seed, tiny_config(vocab, window), 256, dtype)


def stored_target(folder: Path, quant: str = "fp32") -> LeanTarget:
    """One from disk, in a number format."""
    return LeanTarget(load_weights(folder, device="cpu", quant=quant, use_cache=False), 512)


def some_heads(kind: Kind, target: LeanTarget, rows: int, seed: int = 0, drafted: int = 3) -> tuple[Network, torch.Tensor, Taught]:
    """Random heads, the tokens that they may draft, what they learn against. Every weight is moved, those that begin at zero too."""
    made = torch.Generator().manual_seed(seed)
    config = target.model.config
    spec: HeadSpec = sizes.sized(kind, config, "tiny", drafted, rows)
    ids = torch.randperm(config.vocab_size, generator=made)[:rows].sort().values
    lm_head = torch.randn((rows, config.hidden_size), generator=made)
    heads = network.build(spec, lm_head, 1.0, torch.device("cpu"), seed)
    with torch.no_grad():
        for parameter in heads.parameters():
            if parameter.requires_grad:
                parameter += 0.2 * torch.randn(parameter.shape, generator=made)
    return heads, ids, Taught(lm_head, 1.0, lambda tokens: target.model.embed(tokens).float())


def some_text(number: int, length: int, start: int, hidden: int, vocab: int) -> Text:
    """A made-up text."""
    made = torch.Generator().manual_seed(number)
    ids = torch.randint(vocab, (length,), generator=made)
    others = torch.stack([torch.randperm(vocab, generator=made)[:TEACHER] for _ in range(length - start)])
    chances = torch.softmax(torch.randn((length - start, TEACHER), generator=made), -1) * 0.9
    return Text(number, ids, start, torch.randn((length - 1, hidden), generator=made), others, chances)


def few_seeds(patch: pytest.MonkeyPatch) -> None:
    """Few and short held-out prompts, and short replies."""
    everything = seeds.held_out

    def held_out(part: Part, seed: int) -> tuple[Seed, ...]:
        return tuple(s for s in everything(part, seed) if s.number < HELD_OUT)

    patch.setattr(seeds, "held_out", held_out)
    patch.setattr(seeds, "HELD_OUT_TOKENS", TOKENS)
    patch.setattr(seeds, "LONGEST", {"short": TOKENS // 2, "medium": TOKENS, "long": TOKENS})


def taking(n: int) -> Iterator[Seed]:
    """The first n training seeds with few tokens each."""
    for seed, _ in zip(seeds.training(1), range(n), strict=False):
        yield Seed(seed.number, seed.prompt[:24], None, seed.temperature, 6 + seed.number % 7)
