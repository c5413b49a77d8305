"""The real models of the tests with marker `real`: `specchat pull smollm2-135m qwen2.5-coder-0.5b qwen2.5-coder-1.5b gemma-3-270m`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from engine.catalog import catalog, hub
from engine.catalog.specs import ModelSpec
from engine.decoder.opened import Opened, open_target
from engine.drafters.registry import Beside, build
from engine.machine import use_physical_cores
from engine.protocol import Done, Event, Generate, LoadOptions, Message, Sampling
from engine.session import Session
from engine.speculation.control import Controller

SMOL, Q05, Q15, GEMMA = "smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "gemma-3-270m"
CPU = torch.device("cpu")
PROMPTS = (
    "Write a Python function that merges two sorted lists. Add a docstring.",
    "Why is the sky blue? Answer in one paragraph.",
    "用三句话介绍一下长城。",
    'Return this JSON with every price doubled: [{"item": "lamp", "price": 40}, {"item": "chair", "price": 70}]',
    "Écris un court poème sur la mer, avec des émojis 🌊🐟.",
    "List the first twelve prime numbers and their squares in a Markdown table.",
    "Explain recursion to a child of ten in five sentences.",
    "Translate into German: The quick brown fox jumps over the lazy dog near the river bank.",
    "Write a SQL query that counts the orders of each customer in the last 90 days.",
    "اكتب ثلاث نصائح للحفاظ على الصحة.",
)


def find(name: str) -> tuple[ModelSpec, Path]:
    """A model and its file; the test is skipped where it was not pulled."""
    spec = catalog.load().target(name)
    path = hub.locate(spec)
    if path is None:
        pytest.skip(f"{name} is not on this machine: specchat pull {name}")
    return spec, path


def session(name: str, quant: str = "nf4", head: str = "int8", drafter: str = "none", context: int = 4096) -> Session:
    """A loaded target with a drafter."""
    use_physical_cores()
    spec, path = find(name)
    options = LoadOptions(quant=quant, head=head)
    opened = open_target(spec, path, CPU, options, context, lambda *_: None, lambda: False)
    made = Session(opened.target, opened.tokenizer, opened.sampling, opened.tokenizer.stop, Controller())
    put(made, opened, spec, drafter)
    return made


def put(made: Session, opened: Opened, spec: ModelSpec, drafter: str) -> None:
    """Put a drafter beside the target."""
    if drafter not in ("none", "ngram"):
        find(drafter)
    beside = Beside(spec, opened.tokenizer, opened.target.vocab_size, opened.target.context, CPU, opened.scheme)
    made.loaded.drafter = build(catalog.load().drafter(drafter), "auto", beside, CPU, LoadOptions()).drafter


def reply(
    made: Session, messages: Sequence[Message] | str, *, temperature: float = 0.0, seed: int = 0, tokens: int = 96, k: int | None = None
) -> Done:
    """One reply."""
    events: list[Event] = []
    turns = (Message("user", messages),) if isinstance(messages, str) else tuple(messages)
    sampling = Sampling(temperature=temperature, top_p=0.95 if temperature < 1 else 1.0, top_k=0, min_p=0.0, repeat_penalty=1.0)
    command = Generate(1, turns, sampling=sampling, seed=seed, max_tokens=tokens, k=k)
    return made.reply(command, events.append, lambda: False, lambda: None)
