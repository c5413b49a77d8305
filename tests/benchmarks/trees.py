"""How many nodes pay: a chain, a small tree and one of 64 nodes beside the controller's choice, on a real target.

There are no published heads for the small targets of the catalog, so the heads are EAGLE-2's of the target's own size with random
weights: they cost what trained ones cost. What they draft is then made right as often as trained heads are: at each level the target's own
next token takes the place of the j-th child with chance KEPT[j] (about 3.5 tokens a step with 60 nodes, as published for EAGLE-2).
Same text, same seeds, interleaved rounds; prints medians. Usage: python tests/benchmarks/trees.py [-t TARGET] [--tokens N] [--rounds N]
"""

from __future__ import annotations

import argparse
import random
import statistics
from dataclasses import dataclass, field, replace
from time import perf_counter

import torch

from engine import costs
from engine.catalog import stored
from engine.catalog.catalog import load
from engine.decoder.opened import open_target
from engine.decoder.target import LeanTarget
from engine.drafters.heads import build, layout
from engine.drafters.heads.drafter import HeadsDrafter
from engine.drafters.heads.specs import TREES, HeadSpec
from engine.machine import resolve_device, use_physical_cores
from engine.protocol import LoadOptions, Message
from engine.speculation.control import Controller
from engine.speculation.draft import Context, Draft, Needs
from engine.speculation.loop import Limits, StepResult, generate
from engine.speculation.sampling import Filters, Picker

PROMPT = "Explain step by step how a hash table works, with a longer Python example and its test."
KEPT = (0.60, 0.14, 0.06, 0.035, 0.02, 0.015, 0.01, 0.01, 0.005, 0.005)


class Taught(HeadsDrafter):
    """Heads whose drafts are made right with the chances above. `truth` is the whole text, prompt included."""

    truth: tuple[int, ...] = ()
    rng = random.Random(0)

    def propose(self, ctx: Context) -> Draft:
        draft = super().propose(ctx)
        tokens, row, at = list(draft.tokens), 0, len(ctx.ids)
        while at < len(self.truth):
            children = [i for i, parent in enumerate(draft.parents) if parent == row]
            (which,) = self.rng.choices(range(len(KEPT) + 1), (*KEPT, 1.0 - sum(KEPT)))
            if which >= len(children):
                break
            tokens[children[which]] = self.truth[at]
            row, at = children[which] + 1, at + 1
        return replace(draft, tokens=tuple(tokens))


@dataclass
class Lane:
    """One way to draft, and what it measured in each round."""

    name: str
    drafter: HeadsDrafter | None
    k: int | None
    control: Controller
    rates: list[float] = field(default_factory=list)
    steps: list[StepResult] = field(default_factory=list)

    def row(self) -> str:
        n = len(self.steps)
        emitted = sum(step.emitted for step in self.steps)
        drafts = [step for step in self.steps if step.nodes]
        nodes = sum(step.nodes for step in drafts) / max(len(drafts), 1)
        ms = [1e3 * sum(getattr(step, f"{part}_s") for step in self.steps) / n for part in ("draft", "verify", "other")]
        rate = statistics.median(self.rates)
        return f"{self.name:<14} {rate:7.1f} tok/s  tau {emitted / n:4.2f}  {nodes:5.1f} nodes  " + "  ".join(f"{x:6.2f}" for x in ms)


def heads_for(target: LeanTarget, name: str, top_k: int, depth: int, quant: str) -> Taught:
    """EAGLE-2 heads of the target's size."""
    config = target.model.config
    spec = HeadSpec(
        "eagle2", config.hidden_size, config.vocab_size, config.vocab_size, config.hidden_size, layers=1,
        intermediate=config.intermediate_size, heads=config.n_heads, kv_heads=config.n_kv_heads, head_dim=config.head_dim,
        max_positions=config.max_position, own_embedding=True, fc_bias=True, **{**TREES["eagle2"], "top_k": top_k, "depth": depth},
    )  # fmt: skip
    tensors = {name: torch.randn(shape) * 0.02 for name, shape in layout.expected(spec).items()}
    tensors["embed_tokens.weight"] = target.model.weights.embed
    built, _ = build.build(name, spec, tensors, target, quant)
    return Taught(name, "eagle2", built.head, min(59, depth + 1) if top_k == 1 else 59)


def write(target: LeanTarget, prompt: list[int], lane: Lane, tokens: int) -> list[int]:
    """One greedy reply; the whole text."""
    target.truncate(0)
    drafter = lane.drafter
    ids = list(prompt)
    target.needs = drafter.needs if drafter is not None else Needs()
    if drafter is not None:
        drafter.rewind([])
        target.prefill(prompt[:-1], sink=lambda at, taps: drafter.absorb(prompt, at, taps))
        drafter.rng = random.Random(1)
    else:
        target.prefill(prompt[:-1])
    ctx = Context(ids, len(prompt), 0, Picker(Filters(), 1), vocab_size=target.vocab_size)
    lane.control.k = lane.k
    lane.control.most = drafter.needs.max_nodes if drafter is not None else 0
    begun = perf_counter()
    limits = Limits(tokens, target.context, frozenset())
    generate(target, ctx, limits, lane.control, lambda _: True, lane.steps.append, lambda: False, lambda: drafter)
    lane.rates.append(tokens / (perf_counter() - begun))
    return ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-t", "--target", default="smollm2-135m")
    parser.add_argument("--quant", default="auto")
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    use_physical_cores()
    torch.manual_seed(0)
    spec = load().target(asked.target)
    device = resolve_device("auto")
    opened = open_target(spec, stored.where(spec), device, LoadOptions(quant=asked.quant), 4096, lambda *_: None, lambda: False)
    target = opened.target
    assert isinstance(target, LeanTarget), "this target runs through transformers"
    prompt = opened.tokenizer.render((Message("user", PROMPT),))
    tree, chain = heads_for(target, "tree", 10, 5, opened.scheme), heads_for(target, "chain", 1, 7, opened.scheme)
    lanes = [
        Lane("plain", None, 0, Controller()),
        Lane("chain of 4", chain, 4, Controller()),
        Lane("tree of 8", tree, 8, Controller()),
        Lane("tree of 60", tree, 59, Controller()),
        Lane("controller", tree, None, Controller()),
    ]
    costs.measure(target, tree, lanes[-1].control, lambda: None)
    print(f"{spec.name} {opened.scheme}, head {opened.head_scheme}, {device}; rows of a tree: "
          + ", ".join(f"{n} {1e3 * lanes[-1].control.trees.at(n):.1f} ms" for n in (1, 3, 8, 16, 40, 64)))  # fmt: skip
    truth = tuple(write(target, prompt, lanes[0], asked.tokens))
    tree.truth = chain.truth = truth
    for lane in lanes:
        lane.rates.clear()
        lane.steps.clear()
    for _ in range(asked.rounds):
        for lane in lanes:
            assert tuple(write(target, prompt, lane, asked.tokens)) == truth or not target.exact, lane.name
    print("way            speed            emitted     tree         draft, verify, other in ms a step")
    for lane in lanes:
        print(lane.row())
    fixed = {lane.name: statistics.median(lane.rates) for lane in lanes[:-1]}
    best = max(fixed, key=lambda name: fixed[name])
    print(f"best fixed: {best}; the controller reaches {statistics.median(lanes[-1].rates) / fixed[best]:.0%} of it")


if __name__ == "__main__":
    main()
