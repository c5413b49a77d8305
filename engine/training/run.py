"""One training from beginning to end: open the target, let it answer, train heads, write them, measure them, make them known.

Every part leaves its result on disk before the next one begins, so `--resume` goes on wherever it was stopped or killed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from engine import room
from engine.catalog import fit, stored
from engine.catalog.progress import human
from engine.catalog.specs import NONE
from engine.decoder.opened import open_target
from engine.decoder.target import LeanTarget
from engine.decoder.tokenizer import Tokenizer
from engine.drafters.heads import identity
from engine.drafters.heads.build import open_heads
from engine.drafters.heads.drafter import HeadsDrafter
from engine.errors import EngineError
from engine.machine import free_memory, resolve_device, use_physical_cores
from engine.protocol import Load, Loading
from engine.training import answers, entry, export, files, measure, network, shortlist, sizes
from engine.training.loop import Data, Loop, Terms
from engine.training.losses import LOGITS, Taught
from engine.training.precision import choose as choose_precision
from engine.training.protocol import Event, Measured, Plan, Remark, Stage, Stopped, Trained
from engine.training.shards import Store
from engine.training.work import FOLDER, Work

CONTEXT = 2048  # tokens; prompts and replies are far shorter
REPORTED = 40  # held-out texts that are decoded for the report
SAFE = 1.3  # room beside what training is known to need

Emit = Callable[[Event], None]
Cancelled = Callable[[], bool]


class Run:
    """See the module. Everything with a tensor happens in the thread that calls `run`."""

    def __init__(self, plan: Plan, emit: Emit, cancelled: Cancelled) -> None:
        self._plan, self._emit, self._cancelled = plan, emit, cancelled

    def run(self) -> Trained | Stopped:
        """Do what is not done yet. Raises EngineError; what was finished before stays on disk."""
        plan = self._plan
        use_physical_cores()
        with files.alone(plan.out / FOLDER):
            work = Work(plan)
            try:
                return self._all(work)
            finally:
                if work.memory.fixed:
                    with contextlib.suppress(EngineError):  # a full disk has been reported already
                        work.save()

    def _all(self, work: Work) -> Trained | Stopped:
        plan = self._plan
        target, tokenizer = self._open()
        weights = target.model.weights
        made_for = identity.describe(weights, plan.target.name)
        features = "bf16" if plan.features == "auto" else plan.features
        precision = work.memory.fixed.get("precision") if plan.precision == "auto" and not plan.again else None
        precision = precision or choose_precision(plan.precision, target.device)
        rows = sizes.shortlist_size(plan.shortlist, target.vocab_size, target.device.type)
        spec = sizes.sized(plan.kind, target.model.config, plan.target.name, plan.heads, rows)
        work.settle(made_for, features, precision)
        if not answers.write(work, target, tokenizer, features, self._emit, self._cancelled):
            return Stopped(plan.out)
        data, judged = Store(work.part("data")), Store(work.part("judge"))
        numbers, memory = work.memory.texts, work.memory
        tokens = sum(data.replied(number) for number in numbers)
        if not memory.ids:
            memory.ids = shortlist.choose(data, numbers, rows, target.vocab_size).tolist()
            work.save()
        ids = torch.tensor(memory.ids)
        columns = shortlist.columns(ids, target.vocab_size)
        covered = shortlist.coverage(judged, judged.numbers, ids, target.vocab_size)
        self._emit(Remark(f"{tokens:,} tokens of data; the heads may draft {rows:,} tokens, {covered:.1%} of new replies."))
        head_rows = shortlist.head_rows(target.model, ids).to(target.device)
        scale = shortlist.usual_size(data, numbers)
        gain = shortlist.embedding_gain(target.model, ids, scale)
        if rows < target.vocab_size and plan.kind != "medusa":  # else the layout is the published one, which knows no gain
            spec = replace(spec, embedding_gain=gain)
        heads = network.build(spec, head_rows, scale, target.device, plan.seed)
        self._check_memory(heads, target.device)
        taught = Taught(head_rows, scale, lambda tokens: gain * target.model.embed(tokens).float(), precision == "bf16")
        recipe = self._recipe(made_for, tokens, len(numbers), covered, precision)
        self._emit(Stage("Timing the target and the heads"))
        export.write_weights(work.part("trial"), heads, ids, weights, recipe, gain, chain=target.device.type == "cpu")
        drafter, _, _ = self._heads(work.part("trial"), target)
        known = measure.cost_of(target, drafter, plan.heads)
        drafter.close()
        self._emit(Remark(known.sentence(plan.heads)))
        self._emit(Stage("Training the heads"))
        terms = Terms(plan.epochs, None if work.limit_s is None else work.training_s, plan.seed, known.verify, known.draft)
        loop = Loop(heads, Data(data, numbers, judged, ids, columns), taught, terms, work.folder, self._emit)
        if not loop.run(self._cancelled):
            return Stopped(plan.out)
        score = loop.score()
        steps, epochs = loop.progress.step, loop.epochs
        recipe = replace(recipe, steps=steps, epochs=epochs, seconds=work.seconds, judged_tau=score.tau, agreement=score.agreement)
        export.write_weights(plan.out, heads, ids, weights, recipe, gain, chain=target.device.type == "cpu")
        del loop, heads
        free_memory()
        measured = self._measure(work, target)
        if measured is None:
            return Stopped(plan.out)
        export.write_config(plan.out, spec, recipe, measured)
        name = self._register(measured)
        export.write_card(plan.out, spec, recipe, measured, name)
        work.save()
        return Trained(plan.out, name, plan.kind, measured, tokens, steps, work.seconds, work.bytes)

    def _open(self) -> tuple[LeanTarget, Tokenizer]:
        plan = self._plan
        device = resolve_device(plan.options.device)
        context, _, _ = room.plan(Load(plan.target, NONE, plan.options), device)  # or the reason why it does not fit into memory

        def progress(stage: str, done: int, total: int) -> None:
            self._emit(Loading(stage, done, total, "B" if total > 10_000 else ""))

        self._emit(Stage(f"Loading {plan.target.name}"))
        opened = open_target(plan.target, stored.where(plan.target), device, plan.options, min(context, CONTEXT), progress, self._cancelled)
        if not isinstance(opened.target, LeanTarget):
            raise EngineError(
                f"Heads read the hidden states of their target, which {plan.target.name} does not show: it runs through transformers.",
                "Choose another target with -t.",
                kind="architecture",
            )
        for note in opened.notes:
            self._emit(Remark(note))
        return opened.target, opened.tokenizer

    def _heads(self, folder: Path, target: LeanTarget) -> tuple[HeadsDrafter, str, tuple[str, ...]]:
        """The heads as a chat would load them."""
        scheme = target.model.weights.scheme
        quant = "int8" if scheme in ("nf4", "int8") else scheme
        return open_heads(self._plan.name or folder.name, folder, "auto", target, quant, target_name=self._plan.target.name)

    def _measure(self, work: Work, target: LeanTarget) -> Measured | None:
        self._emit(Stage("Measuring the heads on topics that were never trained on"))
        report = Store(work.part("report"))
        texts = [report.read(number) for number in report.numbers[:REPORTED]]
        drafter, _, _ = self._heads(self._plan.out, target)
        known = measure.cost_of(target, drafter, self._plan.heads)
        measured = measure.measure(target, drafter, texts, self._plan.heads, known, self._cancelled)
        drafter.close()
        return measured

    def _register(self, measured: Measured) -> str:
        """An entry in models.toml; "" where there is none, with the reason said."""
        plan = self._plan
        if not plan.register:
            return ""
        note = f"trained at home, tau {measured.tau:.2f} on new topics"
        try:
            return entry.add(plan.name, plan.out.absolute(), plan.target, note)
        except EngineError as error:
            text = entry.text(plan.name, plan.out.absolute(), plan.target, note)
            self._emit(Remark(f"The heads are written, but models.toml is not: {error.message} To add them yourself:\n{text}"))
            return ""

    def _recipe(self, made_for: dict[str, object], tokens: int, texts: int, covered: float, precision: str) -> export.Recipe:
        target = self._plan.target
        own = len(self._plan.prompts)
        return export.Recipe(target.repo or target.name, dict(made_for), tokens, texts, own, covered, 0, 0.0, 0.0, precision, 0.0, ())

    def _check_memory(self, heads: network.Network, device: torch.device) -> None:
        """EngineError(kind="memory") before it is tried in vain: gradients, averages, a block of logits, the LM head in halves."""
        trained = sum(p.numel() for p in heads.parameters() if p.requires_grad)
        need = math.ceil(SAFE * (12 * trained + 12 * LOGITS + 2 * heads.spec.draft_vocab * heads.spec.hidden))
        free, _ = fit.available(str(device))
        if free < need:
            raise EngineError(
                f"Training needs about {human(need)} of memory, and {human(free)} are free.",
                "Close other programs and go on with --resume, or train smaller heads: --kind medusa, a smaller --shortlist.",
                kind="memory",
                numbers={"need": need, "free": free},
            )
