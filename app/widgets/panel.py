"""A boxed note inside the transcript: an error, a question with choices, or a list. Shown next to what it is about."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from app.commands import key_label
from app.terminal import for_terminal


@dataclass(frozen=True, slots=True)
class Choice:
    """A key, what it does in words, and a stable name for the handler."""

    key: str
    label: str
    name: str


class Panel(Static, can_focus=False):
    """A title, text, a hint, and choices by key. With choices it takes the focus; the last choice is the one that Esc means."""

    DEFAULT_CSS = """
    Panel { height: auto; margin: 0 1 1 1; padding: 0 1; border: round $primary; }
    Panel.-error { border: round $error; }
    Panel.-list { text-wrap: nowrap; text-overflow: ellipsis; }
    Panel:focus { border: heavy $accent; }
    """

    @dataclass
    class Chosen(Message):
        """The person has chosen."""

        panel: Panel
        name: str

    def __init__(self, title: str, text: str = "", hint: str = "", choices: tuple[Choice, ...] = (), *, kind: str = "note") -> None:
        super().__init__(classes=f"-{kind}")  # note, error, or list, whose rows are cut rather than wrapped
        self._title = ("! " if kind == "error" else "") + title
        self._text = text
        self._hint = hint
        self.choices = choices
        self.can_focus = bool(choices)
        self._result = ""
        self.update(self._content())

    def choose(self, name: str) -> None:
        """Take a choice, once."""
        label = next(choice.label for choice in self.choices if choice.name == name)
        self.choices = ()
        self.can_focus = False
        self._result = label
        self.update(self._content())
        self.post_message(self.Chosen(self, name))

    def dismiss(self) -> None:
        """What Esc means: the last choice."""
        if self.choices:
            self.choose(self.choices[-1].name)

    def on_key(self, event: events.Key) -> None:
        for choice in self.choices:
            if event.key == choice.key:
                event.stop()
                self.choose(choice.name)
                return

    @property
    def plain(self) -> str:
        """What is shown, as text."""
        return self._content().plain

    def _content(self) -> Content:
        parts: list[Content] = [Content.styled(for_terminal(self._title), "bold")]
        parts += [Content(for_terminal(text)) for text in (self._text, self._hint) if text]
        if self.choices:
            parts.append(
                Content("\n").join(Content.assemble((f"[{key_label(c.key)}]", "bold"), f" {for_terminal(c.label)}") for c in self.choices)
            )
        if self._result:
            parts.append(Content.styled(f"> {for_terminal(self._result)}", "dim"))
        return Content("\n").join(parts)
