"""Tiny random lean decoders, and drafters that try to break the loop. No files, no downloads."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from engine.decoder.config import DecoderConfig, Rope
from engine.decoder.linear import Dense
from engine.decoder.target import LeanTarget
from engine.decoder.weights import LayerWeights, Weights
from engine.speculation.control import Controller
from engine.speculation.draft import Context, Draft, Drafter, Needs, Verdict
from engine.speculation.loop import Emitted, Limits, StepResult, generate
from engine.speculation.sampling import Filters, Picker


def tiny_config(vocab_size: int = 32, window: int | None = None, n_layers: int = 2) -> DecoderConfig:
    """Two layers, two key heads; with a window the first layer slides."""
    rope = Rope("default", 10000.0, 8)
    return DecoderConfig(
        family="llama",
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=24,
        n_layers=n_layers,
        n_heads=4,
        n_kv_heads=2,
        head_dim=8,
        norm_eps=1e-6,
        max_position=4096,
        windows=(window,) + (None,) * (n_layers - 1),
        ropes=(rope,) * n_layers,
        attention_scale=8**-0.5,
    )


def tiny_target(seed: int, config: DecoderConfig | None = None, context: int = 256, dtype: torch.dtype = torch.float64) -> LeanTarget:
    """Random weights, strong enough that the text is not constant."""
    config = config or tiny_config()
    made = torch.Generator().manual_seed(seed)

    def matrix(n: int, k: int) -> torch.Tensor:
        return (torch.randn(n, k, generator=made, dtype=torch.float64) * 1.6 / k**0.5).to(dtype)

    ones = torch.ones(config.hidden_size, dtype=dtype)
    width = (config.n_heads + 2 * config.n_kv_heads) * config.head_dim
    layers = tuple(
        LayerWeights(
            qkv=Dense(matrix(width, config.hidden_size), None),
            o=Dense(matrix(config.hidden_size, config.n_heads * config.head_dim), None),
            gate_up=Dense(matrix(2 * config.intermediate_size, config.hidden_size), None),
            down=Dense(matrix(config.hidden_size, config.intermediate_size), None),
            attn_norm=ones,
            mlp_norm=ones,
        )
        for _ in range(config.n_layers)
    )
    embed = matrix(config.vocab_size, config.hidden_size) * 4
    head = Dense(matrix(config.vocab_size, config.hidden_size) * 3, None)
    weights = Weights(config, embed, layers, ones, head, "fp64", "fp64", torch.device("cpu"), dtype, 0)
    return LeanTarget(weights, context)


@dataclass
class Adversary:
    """Drafts trees, duplicates, stop ids, nothing or the truth, as its random numbers say. `truth` is the text without a drafter."""

    rng: random.Random
    vocab_size: int
    truth: list[int] = field(default_factory=list)
    prompt_len: int = 0
    honest: float = 0.5
    tree: bool = True
    name: str = "adversary"
    method: str = "model"
    needs: Needs = field(default_factory=Needs)

    def sync(self, ctx: Context) -> None:
        """Nothing to catch up with."""

    def propose(self, ctx: Context) -> Draft:
        n = self.rng.randint(0, ctx.budget(self.name))
        tokens: list[int] = []
        parents: list[int] = []
        depth = [0]
        for i in range(n):
            parent = self.rng.randint(0, i) if self.tree else i
            at = len(ctx.ids) - self.prompt_len + depth[parent]
            true = self.truth[at] if at < len(self.truth) else None
            honest = true is not None and self.rng.random() < self.honest
            tokens.append(true if honest and true is not None else self.rng.randrange(self.vocab_size))
            parents.append(parent)
            depth.append(depth[parent] + 1)
        return Draft(tuple(tokens), tuple(parents), source=self.name)

    def commit(self, ctx: Context, verdict: Verdict) -> None:
        assert ctx.ids[-len(verdict.tokens) :] == list(verdict.tokens) or not verdict.tokens

    def memory(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing to free."""


@dataclass(frozen=True)
class Run:
    """One reply."""

    ids: list[int]
    reason: str
    steps: list[StepResult]


def write(
    target: LeanTarget,
    prompt: list[int],
    drafter: Drafter | None,
    *,
    filters: Filters = Filters(),  # noqa: B008  frozen
    seed: int = 1,
    max_tokens: int = 24,
    stop_ids: frozenset[int] = frozenset(),
    k: int | None = 5,
    rule: str = "match",
    between: Callable[[Context], Drafter | None] | None = None,
    stop_after: int | None = None,
) -> Run:
    """Write a reply from an empty cache."""
    target.truncate(0)
    target.prefill(prompt[:-1])
    return carry_on(
        target,
        list(prompt),
        drafter,
        filters=filters,
        seed=seed,
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        k=k,
        rule=rule,
        between=between,
        stop_after=stop_after,
    )


def carry_on(
    target: LeanTarget,
    ids: list[int],
    drafter: Drafter | None,
    *,
    filters: Filters,
    seed: int,
    max_tokens: int,
    stop_ids: frozenset[int],
    k: int | None,
    rule: str,
    between: Callable[[Context], Drafter | None] | None = None,
    stop_after: int | None = None,
) -> Run:
    """Write a reply behind what the cache holds."""
    start = len(ids)
    ctx = Context(ids, start, 0, Picker(filters, seed, ids), vocab_size=target.vocab_size, with_laws=rule == "ratio")
    control = Controller()
    control.k = k
    if drafter is not None:
        drafter.sync(ctx)
    steps: list[StepResult] = []

    stream: list[Emitted] = []

    def push(token: Emitted) -> bool:
        stream.append(token)
        return stop_after is None or len(stream) < stop_after

    reason = generate(
        target,
        ctx,
        Limits(max_tokens, target.context, stop_ids),
        control,
        push,
        steps.append,
        lambda: False,
        (lambda: between(ctx)) if between else (lambda: drafter),
        "ratio" if rule == "ratio" else "match",
    )
    assert [token.token for token in stream] == ctx.ids[start:]
    assert sum(step.emitted for step in steps) == len(stream)
    return Run(ctx.ids[start:], reason, steps)
