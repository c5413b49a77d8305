"""One loaded target and its conversation: prompts to ids, reuse of what was read before, a reply as events.

The cache always holds a prefix of `ids`. A new prompt keeps the longest common beginning and reads only the rest; when a reply has
ended the cache holds everything but its last token, whatever drafted it (DESIGN 5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from engine.drafters.model import common
from engine.errors import EngineError
from engine.protocol import Done, Event, FinishReason, Generate, Look, Memory, Message, Notice, Prefill, Sampling, Segment, Step, Weigh
from engine.reading import catch_up, read_prompt
from engine.speculation.control import Controller
from engine.speculation.draft import Context, Drafter, Needs, Question
from engine.speculation.loop import Emitted, Limits, StepResult, generate
from engine.speculation.sampling import Filters, Picker
from engine.stats import Tally
from engine.text import Detokenizer
from engine.words import counted

if TYPE_CHECKING:
    from engine.decoder.target import Target
    from engine.decoder.tokenizer import Tokenizer

Emit = Callable[[Event], None]


@dataclass(slots=True)
class Loaded:
    """The drafter beside the target; the thread exchanges it, also in mid-reply."""

    drafter: Drafter | None = None


class Session:
    """See the module. Owned by the engine thread."""

    def __init__(self, target: Target, tokenizer: Tokenizer, defaults: Sampling, stop: Sequence[str], control: Controller) -> None:
        self.target = target
        self.tokenizer = tokenizer
        self.defaults = defaults
        self.control = control
        self.loaded = Loaded()
        self._stop = tuple(stop)
        self.tally = Tally()  # of the last reply
        self._ids: list[int] = []  # prompt and reply so far; the cache holds the first target.length of them
        self._switch_said = False  # that the template has no switch for thoughts
        self._alone = False  # each token is verified alone, and that was said

    # --- one reply ---------------------------------------------------------------------------------------------------

    def reply(self, command: Generate, emit: Emit, cancelled: Callable[[], bool], between: Callable[[], None]) -> Done:
        """Write one reply. `between` runs between steps and may exchange the drafter. Raises EngineError."""
        prompt, trimmed = self._prompt(command)
        if command.think is not None and not self.tokenizer.has_switch and not self._switch_said:
            self._switch_said = True
            emit(Notice(f"The chat template of {self.tokenizer.name} has no switch for thoughts: /think on and off change nothing."))
        filters = self._filters(command.sampling)
        reused = self._rewind(prompt)
        begun = perf_counter()

        def progress(done: int, _: int) -> None:
            emit(Prefill(command.reply, reused + done, len(prompt), reused))

        emit(Prefill(command.reply, reused, len(prompt), reused))
        self._ids = list(prompt)  # before anything is read: whatever ends the reading, the cache holds a beginning of these
        whole = read_prompt(self.target, self.loaded.drafter, prompt, reused, progress, emit, cancelled)
        ctx = Context(
            self._ids,
            len(prompt),
            command.offset,
            Picker(filters, command.seed, prompt if filters.repeat_penalty != 1.0 else ()),
            vocab_size=self.target.vocab_size,
            with_laws=command.verify == "ratio" and not filters.greedy,
            cancelled=cancelled,
            question=_question(command, trimmed),
            tell=lambda text: self.control.notices.append(text),  # the list itself changes
        )
        synced: Drafter | None = None

        def drafter_now() -> Drafter | None:
            nonlocal synced
            between()
            if self.loaded.drafter is not None and self.loaded.drafter is not synced:
                catch_up(self.target, self.loaded.drafter, ctx, emit)
                self.loaded.drafter.sync(ctx)
            synced = self.loaded.drafter
            self.target.needs = synced.needs if synced is not None else Needs()
            self._limit(command)
            for text in self.control.take_notices():
                emit(Notice(text, command.reply))
            return synced

        if whole:
            drafter_now()  # reading the prompt is not part of decoding
        prefill_s = perf_counter() - begun
        self.tally = Tally()
        writer = _Writer(command, self.tokenizer.decode, (*self._stop, *command.stop), emit, prompt if command.carry_on else (), self.tally)
        reason: FinishReason = "cancelled"
        if whole:
            most = command.max_tokens if command.max_tokens is not None else self.target.context
            limits = Limits(most, self.target.context, frozenset(self.tokenizer.eos_ids))
            reason = generate(self.target, ctx, limits, self.control, writer.push, writer.step, cancelled, drafter_now, command.verify)
        tail = tuple(writer.detokenizer.finish())
        return Done(
            reply=command.reply,
            finish_reason=reason,
            text=writer.detokenizer.text,
            token_ids=tuple(ctx.ids[len(prompt) :]),
            stop_id=writer.stop_id,
            seed=command.seed,
            prompt_tokens=len(prompt),
            reused_tokens=reused,
            prefill_s=prefill_s,
            sampling=_sampling(filters),
            plain_s=self.control.plain_s or None,
            memory=self.memory(),
            tail=tail,
            trimmed=trimmed,
            method=synced.method if synced else "none",
            drafter=synced.name if synced else "none",
        )

    def weigh(self, command: Weigh, cancelled: Callable[[], bool]) -> tuple[float, ...]:
        """Logits (C,) of the candidates behind the prompt and the first tokens of a reply; () when stopped. Raises EngineError."""
        prompt, _ = self._prompt(command.prompt)
        ids = [*prompt, *command.ids]
        reused = self._rewind(ids)
        self._ids = ids
        if not self.target.prefill(ids[reused:-1], None, cancelled):
            return ()
        logits = self.target.verify(torch.tensor(ids[-1:]), ())[0]  # (V,)
        self.target.truncate(len(ids) - 1)
        return tuple(logits[list(command.tokens)].tolist())

    def _limit(self, command: Generate) -> None:
        """How much may be drafted in this reply."""
        drafter = self.loaded.drafter
        self.control.k = command.k
        most = min(drafter.needs.max_nodes, self.target.max_nodes) if drafter is not None else 0
        strict = command.strict and not self.target.exact and most > 0
        if strict:
            if not self._alone:
                self.control.notices.append(
                    "--strict: on this device the last bits of a row depend on how many rows share a pass, so each token is verified alone."
                )
            most = 0
        self._alone = strict
        self.control.most = most

    def _rewind(self, prompt: list[int]) -> int:
        """Keep what the cache has of this prompt; at least the last token is read again. Returns the tokens kept."""
        held = self._ids[: self.target.length]
        return self.target.truncate(common(held, prompt, 0, len(prompt) - 1))

    # --- the prompt --------------------------------------------------------------------------------------------------

    def _prompt(self, command: Generate) -> tuple[list[int], int]:
        """Ids of the prompt, and how many of the oldest messages were left out. Raises EngineError(kind="too_long")."""
        most = self.target.context - 1  # room for one token of reply
        ids = self._ids_of(command)
        if not ids:
            raise EngineError("The prompt is empty.", "Type some text.", kind="empty")
        if len(ids) <= most:
            return ids, 0
        shorter = self._shorter(command, most)
        if command.trim and shorter is not None:
            return shorter
        raise EngineError(
            f"The prompt has {counted(len(ids), 'token')}; the context holds {self.target.context:,}, one of them for the reply.",
            "Drop the oldest messages, shorten the prompt, or open the model with a larger --context.",
            kind="too_long",
            numbers={"needed": len(ids), "limit": most, "droppable": shorter[1] if shorter else 0},
        )

    def _ids_of(self, command: Generate) -> list[int]:
        """The whole prompt, however long."""
        return self.tokenizer.encode(command.raw, special=True) if command.raw is not None else self._render(command.messages, command)

    def _render(self, messages: Sequence[Message], command: Generate) -> list[int]:
        if command.think is None:
            return self.tokenizer.render(messages, carry_on=command.carry_on)
        return self.tokenizer.render(messages, carry_on=command.carry_on, think=command.think)

    def look(self, command: Look) -> tuple[str, int, int]:
        """(text, tokens, tokens in the cache) of a prompt, however long it is; nothing changes. Raises EngineError."""
        ids = self._ids_of(command.prompt)
        return self.tokenizer.decode(ids), len(ids), common(self._ids[: self.target.length], ids, 0, max(0, len(ids) - 1))

    def _shorter(self, command: Generate, most: int) -> tuple[list[int], int] | None:
        """The prompt without as many of the oldest turns as needed; a system message stays. None when nothing helps."""
        if command.raw is not None:
            return None
        system = [m for m in command.messages[:1] if m.role == "system"]
        turns: list[Message] = list(command.messages[len(system) :])
        dropped = 0
        while True:
            cut = next((i for i, m in enumerate(turns) if i > 0 and m.role == "user"), None)  # a chat begins with the person
            if cut is None:
                return None
            turns, dropped = turns[cut:], dropped + cut
            ids = self._render((*system, *turns), command)
            if len(ids) <= most:
                return ids, dropped

    def _filters(self, wish: Sampling) -> Filters:
        def pick(name: str, fallback: float) -> float:
            value = getattr(wish, name)
            value = getattr(self.defaults, name) if value is None else value
            return fallback if value is None else value

        return Filters(
            temperature=pick("temperature", 0.7),
            top_p=pick("top_p", 0.95),
            top_k=int(pick("top_k", 0)),
            min_p=pick("min_p", 0.0),
            repeat_penalty=pick("repeat_penalty", 1.0),
        )

    def memory(self) -> Memory:
        """Bytes in use."""
        weights, kv = self.target.memory()
        return Memory(target=weights, drafter=self.loaded.drafter.memory() if self.loaded.drafter else 0, kv=kv)


class _Writer:
    """Turns step results into Step events."""

    def __init__(
        self, command: Generate, decode: Callable[[list[int]], str], stop: Sequence[str], emit: Emit, before: Sequence[int], tally: Tally
    ) -> None:
        self.detokenizer = Detokenizer(decode, stop, before)
        self.stop_id: int | None = None
        self._segments: list[Segment] = []
        self._reply, self._emit, self._index, self._tally = command.reply, emit, 0, tally

    def push(self, token: Emitted) -> bool:
        """One token; False when it completed a stop string."""
        self._segments += self.detokenizer.push(token.token, token.origin, token.position, self._index + 1)
        return not self.detokenizer.stopped

    def step(self, result: StepResult) -> None:
        """The step is over: one event."""
        self._index += 1
        self.stop_id = result.stop_id
        segments, self._segments = self._segments, []
        step = Step(
            reply=self._reply,
            index=self._index,
            segments=tuple(segments),
            emitted=result.emitted,
            drafted=result.drafted,
            accepted=result.accepted,
            nodes=result.nodes,
            draft_s=result.draft_s,
            verify_s=result.verify_s,
            bridge_s=result.bridge_s,
            other_s=result.other_s,
            at_s=result.at_s,
            note=result.note,
        )
        self._tally.add(step)
        self._emit(step)


def _question(command: Generate, trimmed: int) -> Question:
    """What the target was asked, without the turns that were left out."""
    system = sum(m.role == "system" for m in command.messages[:1]) if trimmed else 0
    return Question((*command.messages[:system], *command.messages[system + trimmed :]), command.raw, command.carry_on)


def _sampling(filters: Filters) -> Sampling:
    return Sampling(filters.temperature, filters.top_p, filters.top_k, filters.min_p, filters.repeat_penalty)
