"""A conversation as data: the tree of its messages, the settings, and the `Generate` that asks for the next reply. No widgets.

`Chat` knows which reply is being written. A prompt that was not answered is given back, never lost. `app.saved` turns a chat into rows
of the database and back.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from app.seeds import reply_seed
from app.terminal import one_line
from app.tree import Attachment, Fork, Turn, Version, new_key, path
from engine.catalog.specs import AUTO, ModelSpec
from engine.protocol import Done, Generate, LoadOptions, Message, Sampling, Step, Verify
from engine.trace import DONE

__all__ = ["Attachment", "Chat", "ChatOptions", "Turn", "Version"]

TITLE = 60  # characters of the first question that become the title
Think = Literal["fold", "show"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How the chat starts: what the command line said."""

    target: ModelSpec | None = None  # None = none chosen yet: offer models by hardware
    drafter: ModelSpec = AUTO
    method: str = "auto"
    load: LoadOptions = field(default_factory=LoadOptions)
    sampling: Sampling = field(default_factory=Sampling)
    seed: int | None = None  # None = a fresh random seed per reply
    k: int | None = None  # None = the controller decides
    verify: Verify = "match"
    strict: bool = False
    max_tokens: int | None = None  # None = to the end of the context
    stop: tuple[str, ...] = ()
    system: str | None = None
    offline: bool = False
    notes: tuple[str, ...] = ()  # warnings to show once at the start
    resume: str | None = None  # open this saved chat: its number or words of its title; "" = the last one


class Chat:
    """Turns, settings, and the one reply that may be under way."""

    def __init__(self, options: ChatOptions) -> None:
        self._options = options
        self._numbers = 0
        self.reset()

    def reset(self) -> None:
        """An empty chat with the settings of the start."""
        self.sampling = self._options.sampling
        self.seed = self._options.seed
        self.k = self._options.k
        self.max_tokens = self._options.max_tokens
        self.system = self._options.system
        self.think: Think = "fold"
        self.thinking: bool | None = None  # let the model think aloud; None = as it does by itself
        self._empty()

    def _empty(self) -> None:
        self.key = new_key()
        self.number = 0  # in the list of chats; 0 = not saved yet
        self.title = ""
        self.created_s = time.time()
        self.root: Fork[Turn] = Fork()
        self.dropped = 0  # oldest messages that are no longer sent
        self.draft = ""  # what stands in the box, unsent
        self.attached: tuple[Attachment, ...] = ()  # to be sent with the next question
        self.undone: list[Turn] = []  # by /undo, the last one at the end
        self.gone: list[int] = []  # keys of deleted messages that the database still has
        self.pending: Generate | None = None
        self.answering: Turn | None = None  # the turn that `pending` answers
        self.version: Version | None = None  # the answer under way; not yet in the tree unless it is continued

    def use(self, options: ChatOptions) -> None:
        """What the program's settings say has changed; what this chat says for itself stays."""
        self._options = options

    def insist(self) -> None:
        """What the command line said goes over what a saved chat says."""
        said = self._options
        given = {f.name: value for f in fields(Sampling) if (value := getattr(said.sampling, f.name)) is not None}
        self.sampling = replace(self.sampling, **given)
        self.seed = self.seed if said.seed is None else said.seed
        self.k = self.k if said.k is None else said.k
        self.max_tokens = self.max_tokens if said.max_tokens is None else said.max_tokens
        self.system = self.system if said.system is None else said.system

    def clear(self) -> None:
        """A new chat; the settings stay."""
        assert self.pending is None
        self._empty()

    @property
    def turns(self) -> list[Turn]:
        """The conversation that is shown and sent: the chosen turns."""
        return path(self.root)

    @property
    def name(self) -> str:
        """The title, or the beginning of the first question."""
        first = next((turn.prompt or turn.attached[0].name for turn in self.root.items if turn.prompt or turn.attached), "")
        return self.title or one_line(first[: 4 * TITLE], TITLE)

    def ask(self, prompt: str) -> Generate:
        """A new turn at the end, with what is attached."""
        self.put(prompt)
        return self.request()

    def put(self, prompt: str) -> Turn:
        """A new turn at the end, without asking for an answer."""
        turns = self.turns
        self._add(prompt, self.attached, self._end(turns[-1]) if turns else None)
        self.attached = ()
        return self.turns[-1]

    def ask_instead(self, turn: Turn, prompt: str) -> Generate:
        """Another question in the place of this one; the old one and all that followed stay as a branch."""
        self._add(prompt, turn.attached, turn.parent)
        self.dropped = 0
        return self.request()

    def _add(self, prompt: str, attached: tuple[Attachment, ...], parent: Version | None) -> None:
        fork = parent.next if parent is not None else self.root
        fork.add(Turn(prompt, attached, parent, fork))
        self.undone.clear()

    @staticmethod
    def before(turn: Turn) -> list[Turn]:
        """The turns before this one, on the way to it."""
        found: list[Turn] = []
        while turn.parent is not None:
            assert turn.parent.turn is not None
            turn = turn.parent.turn
            found.append(turn)
        return found[::-1]

    @staticmethod
    def _end(turn: Turn) -> Version:
        """Where the next question hangs."""
        if turn.answer is None:  # a question that stayed without an answer
            turn.answered(Version(DONE, number=turn.next_number()))
        assert turn.answer is not None
        return turn.answer

    def request(self, trim: bool = False, turn: Turn | None = None) -> Generate:
        """Ask for (another version of) the answer to a turn, by default the last."""
        turn = turn or self.turns[-1]
        number = turn.next_number()
        seed = reply_seed(self.seed, len(self.before(turn)), number)
        return self._begin(turn, Version(DONE, number=number, state="streaming"), seed, self.sampling, trim=trim)

    def carry_on(self) -> Generate:
        """Go on with the last answer, which was cut off: same seed, same settings, tokens counted on."""
        turn = self.turns[-1]
        assert turn.answer is not None
        done = turn.answer.done
        return self._begin(turn, turn.answer, done.seed, done.sampling, carry_on=True, offset=len(done.token_ids))

    def _begin(
        self, turn: Turn, version: Version, seed: int, sampling: Sampling, *, trim: bool = False, carry_on: bool = False, offset: int = 0
    ) -> Generate:
        assert self.pending is None, "one reply at a time"
        self._numbers += 1
        self.answering, self.version = turn, version
        self.pending = Generate(
            reply=self._numbers,
            messages=self.messages(turn, carry_on),
            sampling=sampling,
            seed=seed,
            max_tokens=self.max_tokens,
            stop=self._options.stop,
            k=self.k,
            verify=self._options.verify,
            strict=self._options.strict,
            trim=trim,
            carry_on=carry_on,
            offset=offset,
            think=self.thinking,
        )
        version.done = replace(version.done, seed=seed) if not carry_on else version.done
        return self.pending

    def finished(self, done: Done, steps: tuple[Step, ...] = (), model: str = "") -> bool:
        """Keep the reply. False when nothing was written and the person stopped it: then the turn should be taken back."""
        assert self.pending is not None
        assert self.answering is not None
        assert self.version is not None
        assert done.reply == self.pending.reply
        turn, version, carried = self.answering, self.version, self.pending.carry_on
        self.failed()
        self.dropped += done.trimmed
        version.state = "done"
        if carried:
            version.extended(done, steps)
            return True
        if done.finish_reason == "cancelled" and not done.text:
            self.gone.append(version.key)
            return False
        version.ended(done, steps, model)
        turn.answered(version)
        return True

    def failed(self) -> None:
        """The reply under way will not come."""
        self.pending = self.answering = self.version = None

    def take_back(self) -> str | None:
        """Drop the last turn if it has no answer and return its prompt; None if there is an older version of the answer."""
        assert self.pending is None
        turns = self.turns
        if turns and not turns[-1].replies:
            return self.drop(turns[-1]).prompt
        return None

    def drop(self, turn: Turn) -> Turn:
        """Take a turn out of the tree; what was attached to it is attached again."""
        fork = turn.fork
        fork.remove(turn)
        fork.at = None if not fork.items else fork.at
        self.gone.append(turn.key)
        self.attached = turn.attached or self.attached
        return turn

    def undo(self) -> Turn | None:
        """Leave out the last turn; `redo` brings it back. None when there is none."""
        turns = self.turns
        if not turns:
            return None
        turns[-1].fork.at = None
        self.undone.append(turns[-1])
        return turns[-1]

    def redo(self) -> Turn | None:
        """Bring back what `undo` left out."""
        if not self.undone:
            return None
        turn = self.undone.pop()
        turn.fork.choose(turn)
        return turn

    @property
    def last(self) -> Done | None:
        """The last finished reply of the conversation."""
        return next((turn.answer.done for turn in reversed(self.turns) if turn.answer is not None), None)

    def markdown(self) -> str:
        """The whole chat as Markdown, exact text."""
        parts = []
        for turn in self.turns:
            parts.append(f"**You**\n\n{turn.content}\n")
            parts += [f"**Reply**\n\n{turn.answer.text}\n"] if turn.answer is not None else []
        return "\n".join(parts)

    def messages(self, last: Turn, carry_on: bool) -> tuple[Message, ...]:
        """What is sent for the answer to a turn; with `carry_on`, that answer as far as it is, too."""
        messages: list[Message] = []
        for turn in [*self.before(last), last]:
            messages.append(Message("user", turn.content))
            if turn.answer is not None and (turn is not last or carry_on):
                messages.append(Message("assistant", turn.answer.text))
        system = [Message("system", self.system)] if self.system else []
        return (*system, *messages[min(self.dropped, len(messages) - 1 - carry_on) :])
