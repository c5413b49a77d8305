"""A conversation as data: turns with their versions, the settings, and the `Generate` that asks for the next reply. No widgets.

`Chat` knows which reply is being written. A prompt that was not answered is given back, never lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from app.seeds import reply_seed
from engine.catalog.specs import AUTO, ModelSpec
from engine.protocol import Done, Generate, LoadOptions, Message, Sampling, Verify


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


@dataclass(slots=True)
class Turn:
    """One question and the versions of its answer; the last version counts."""

    prompt: str
    replies: list[Done] = field(default_factory=list)


class Chat:
    """Turns, settings, and the one reply that may be under way."""

    def __init__(self, options: ChatOptions) -> None:
        self.sampling = options.sampling
        self.seed = options.seed
        self.k = options.k
        self.system = options.system
        self.turns: list[Turn] = []
        self.dropped = 0  # oldest messages that are no longer sent
        self.pending: Generate | None = None
        self._options = options
        self._numbers = 0

    def clear(self) -> None:
        """Forget the turns, keep the settings."""
        assert self.pending is None
        self.turns.clear()
        self.dropped = 0

    def ask(self, prompt: str) -> Generate:
        """A new turn."""
        self.turns.append(Turn(prompt))
        return self.request()

    def request(self, trim: bool = False) -> Generate:
        """Ask for (another version of) the answer to the last turn."""
        assert self.pending is None, "one reply at a time"
        turn = self.turns[-1]
        self._numbers += 1
        self.pending = Generate(
            reply=self._numbers,
            messages=self._messages(),
            sampling=self.sampling,
            seed=reply_seed(self.seed, len(self.turns) - 1, len(turn.replies)),
            max_tokens=self._options.max_tokens,
            stop=self._options.stop,
            k=self.k,
            verify=self._options.verify,
            strict=self._options.strict,
            trim=trim,
        )
        return self.pending

    def finished(self, done: Done) -> bool:
        """Keep the reply. False when nothing was written and the person stopped it: then the turn should be taken back."""
        assert self.pending is not None
        assert done.reply == self.pending.reply
        self.pending = None
        self.dropped += done.trimmed
        if done.finish_reason == "cancelled" and not done.text:
            return False
        self.turns[-1].replies.append(done)
        return True

    def failed(self) -> None:
        """The reply under way will not come."""
        self.pending = None

    def take_back(self) -> str | None:
        """Drop the last turn if it has no answer and return its prompt; None if there is an older version of the answer."""
        assert self.pending is None
        if self.turns and not self.turns[-1].replies:
            return self.turns.pop().prompt
        return None

    @property
    def last(self) -> Done | None:
        """The last finished reply."""
        return next((turn.replies[-1] for turn in reversed(self.turns) if turn.replies), None)

    def markdown(self) -> str:
        """The whole chat as Markdown, exact text."""
        parts = []
        for turn in self.turns:
            parts.append(f"**You**\n\n{turn.prompt}\n")
            parts += [f"**Reply**\n\n{turn.replies[-1].text}\n"] if turn.replies else []
        return "\n".join(parts)

    def _messages(self) -> tuple[Message, ...]:
        messages: list[Message] = []
        for turn in self.turns:
            messages.append(Message("user", turn.prompt))
            if turn.replies and turn is not self.turns[-1]:
                messages.append(Message("assistant", turn.replies[-1].text))
        system = [Message("system", self.system)] if self.system else []
        return (*system, *messages[min(self.dropped, len(messages) - 1) :])
