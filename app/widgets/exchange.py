"""One turn on the screen: the person's question and the answer that counts."""

from __future__ import annotations

from textual.app import ComposeResult

from app.tree import Attachment, Turn, Version
from app.widgets.grown import GrownStack
from app.widgets.messages import Title, UserMessage
from app.widgets.reply import Reply

INTERRUPTED = "[interrupted] The program ended before the reply did; all but its last second is here. ^R answers again, Enter goes on."


class Exchange(GrownStack):
    """`turn` is None while the question waits for the model."""

    DEFAULT_CSS = """
    Exchange { height: auto; }
    Exchange > UserMessage.-current { background: $boost; border-left: thick $accent; padding: 0 2; }
    Exchange > Reply.-current { background: $boost; border-left: thick $accent; }
    """

    def __init__(self, text: str, attached: tuple[Attachment, ...] = (), turn: Turn | None = None, reply: Reply | None = None) -> None:
        super().__init__()
        self.turn = turn
        self.title = Title("You", ">")
        self.question = UserMessage(text, attached)
        self.reply = reply

    @classmethod
    def of(cls, turn: Turn, *, unfolded: bool = False) -> Exchange:
        """A turn of a saved conversation, drawn cheaply."""
        version = turn.answer
        reply = None
        if version is not None and (version.text or version.model):
            reply = Reply(version.model or "Reply", version, unfolded=unfolded)
        return cls(turn.prompt, turn.attached, turn, reply)

    def compose(self) -> ComposeResult:
        yield self.title
        yield self.question
        if self.reply is not None:
            yield self.reply

    def show_branch(self) -> None:
        """Which of several questions in the same place this is."""
        if self.turn is not None and len(self.turn.fork.items) > 1:
            self.title.numbers(f"branch {self.turn.fork.items.index(self.turn) + 1}/{len(self.turn.fork.items)}")

    def on_mount(self) -> None:
        self.show_branch()
        if self.turn is not None and self.turn.answer is None:
            self.title.numbers("no answer yet · ^R answers")
        if self.reply is not None and self.reply.version is not None:
            show_numbers(self.reply, self.reply.version)

    async def put(self, reply: Reply) -> None:
        """An answer that begins, in the place of this one, which is hidden until the new one is complete."""
        if self.reply is not None:
            self.reply.display = False
        self.title.numbers("")
        self.show_branch()
        self.reply = reply
        await self.mount(reply)

    def places(self) -> list[UserMessage | Reply]:
        """What the cursor can stand on."""
        return [self.question, *([self.reply] if self.reply is not None and self.reply.display else [])]

    @property
    def exact(self) -> str:
        """All text of it, for a search."""
        return "\n".join([self.question.exact, self.reply.exact if self.reply is not None else ""])


def show_numbers(reply: Reply, version: Version) -> None:
    """Title and foot of an answer that is complete."""
    several = ""
    if version.turn is not None and len(version.turn.replies) > 1:
        several = f"version {version.turn.replies.index(version) + 1}/{len(version.turn.replies)}"
    reply.title.numbers(" · ".join(part for part in (several, version.numbers) if part))
    if version.state == "interrupted":
        reply.foot(INTERRUPTED)
