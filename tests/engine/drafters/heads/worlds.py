"""Random draft heads of every family beside random targets, and replies as a session reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from engine.decoder.config import DecoderConfig
from engine.decoder.target import LeanTarget
from engine.drafters.heads import build, layout
from engine.drafters.heads.drafter import HeadsDrafter
from engine.drafters.heads.specs import TREES, Family, HeadSpec
from engine.speculation.sampling import Filters
from tests.tiny import Run, carry_on, tiny_config, tiny_target

FAMILIES: tuple[Family, ...] = ("medusa", "hydra", "hydra++", "eagle1", "eagle2", "eagle3", "gumiho")


def make_target(
    seed: int, vocab: int, family: Family = "eagle2", dtype: torch.dtype = torch.float32, context: int = 256, window: int | None = None
) -> LeanTarget:
    """EAGLE-3 taps three of at least seven layers; in the larger vocabulary few tokens are likely, so that drafts are kept."""
    config: DecoderConfig = tiny_config(vocab, window, n_layers=8 if family == "eagle3" else 2)
    target = tiny_target(seed, config, context, dtype)
    scheme = "fp64" if dtype == torch.float64 else "fp32"
    target.model.weights = replace(target.model.weights, scheme=scheme)
    if vocab > 100:
        weight = target.model.weights.head._weight  # type: ignore[attr-defined]
        weight[16:] *= 0.2
    return target


def make_spec(family: Family, target: LeanTarget, **changes: Any) -> HeadSpec:
    config = target.model.config
    h, vocab = config.hidden_size, config.vocab_size
    draft_vocab = max(vocab // 2, 8) if family == "eagle3" else vocab
    spec = HeadSpec(family, h, vocab, draft_vocab, h, intermediate=24, heads=4, kv_heads=2, head_dim=8, max_positions=64, **TREES[family])
    match family:
        case "medusa":
            spec = replace(spec, n_heads=5, head_layers=1, own_lm_head=True)
        case "hydra":
            spec = replace(spec, n_heads=4, head_layers=1, own_lm_head=True)
        case "hydra++":
            spec = replace(spec, n_heads=4, head_layers=4, own_lm_head=True, layers=1)
        case "gumiho":
            spec = replace(spec, n_heads=5, head_layers=6, layers=2, own_embedding=True, fc_bias=True)
        case "eagle3":
            spec = replace(spec, layers=1, own_lm_head=True, tap_layers=(2, 4, 5))
        case _:
            spec = replace(spec, layers=1, own_embedding=True, fc_bias=True)
    return replace(spec, **changes)


def make_heads(family: Family, target: LeanTarget, seed: int = 0, corrected: bool = False, quant: str = "", **changes: Any) -> HeadsDrafter:
    """Random weights, in the target's number format if no other is asked for."""
    spec = make_spec(family, target, **changes)
    made = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in layout.expected(spec).items():
        wide = shape[-1] ** -0.5 if len(shape) > 1 else 0.2
        tensors[name] = torch.randn(shape, generator=made) * wide * (3.0 if "lm_head" in name else 1.0)
        if "norm" in name:
            tensors[name] = 1.0 + 0.1 * tensors[name]
    if family == "eagle3":
        ids = torch.randperm(spec.vocab, generator=made)[: spec.draft_vocab].sort().values
        tensors["d2t"] = ids - torch.arange(spec.draft_vocab)
    drafter, _ = build.build(family, spec, tensors, target, quant or target.model.weights.scheme, corrected)
    return drafter


def begin(target: LeanTarget, prompt: list[int], drafter: HeadsDrafter | None) -> None:
    """Read the prompt but its last token, as a session does; what the cache holds of it stays."""
    held = target.length
    if drafter is None:
        target.prefill(prompt[held:-1])
        return
    target.needs = drafter.needs
    read = drafter.rewind(prompt)
    if read < held:
        assert target.reread(prompt[:held], read, lambda at, taps: drafter.absorb(prompt, at, taps), None, None)
    target.prefill(prompt[held:-1], sink=lambda at, taps: drafter.absorb(prompt, at, taps))


def reply(
    target: LeanTarget,
    prompt: list[int],
    drafter: HeadsDrafter | None,
    filters: Filters = Filters(),  # noqa: B008  frozen
    seed: int = 1,
    max_tokens: int = 12,
    k: int | None = None,
    rule: str = "match",
    stop_ids: frozenset[int] = frozenset(),
) -> Run:
    """One reply from an empty cache."""
    target.truncate(0)
    begin(target, prompt, drafter)
    return carry_on(target, list(prompt), drafter, filters=filters, seed=seed, max_tokens=max_tokens, stop_ids=stop_ids, k=k, rule=rule)
