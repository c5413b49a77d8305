"""One-row widgets that are laid out for the width they have: the header and the key bar."""

from __future__ import annotations

from textual.content import Content
from textual.widget import Widget

from app.terminal import one_line
from engine.protocol import Ready


class Line(Widget):
    """One row; `line(width)` makes its content. Repainted only when `show` brings something new."""

    DEFAULT_CSS = "Line { height: 1; width: 100%; }"
    ALLOW_SELECT = False

    def render(self) -> Content:
        return self.line(self.size.width)

    def line(self, width: int) -> Content:
        """The content for this width."""
        raise NotImplementedError


def spread(left: Content, right: Content, width: int) -> Content:
    """Left and right with the space between them; the left gives way."""
    room = max(0, width - right.cell_length - 1)
    if left.cell_length > room:
        left = left.truncate(room, ellipsis=True)
    return Content.assemble(left, " " * (width - left.cell_length - right.cell_length), right)


class HeaderBar(Line):
    """Target, quantization, drafter."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: tuple[str, ...] = ("no model",)
        self._chat: tuple[str, bool] = ("", False)
        self._name, self._badge = "specchat", ""  # the program's name, and what it does in the background

    def on_mount(self) -> None:
        for name in ("title", "sub_title"):
            self.watch(self.app, name, self._name_changed)

    def _name_changed(self) -> None:
        self._name, self._badge = self.app.title, self.app.sub_title
        self.refresh()

    def show(self, ready: Ready | None, loading: str = "", k: int | None = None, title: str = "", *, unsaved: bool = False) -> None:
        """What is loaded, or the name of what is being loaded; the chat's title, and whether saving fails."""
        if loading:
            shown: tuple[str, ...] = ("loading", one_line(loading))
        elif ready is None:
            shown = ("no model",)
        else:
            drafter = one_line(ready.drafter) + (f" k={k}" if k is not None and ready.method != "none" else "")
            shown = ("ready", one_line(ready.target), ready.quant, drafter)
        chat = (one_line(title), unsaved)
        if (shown, chat) != (self._shown, self._chat):
            self._shown, self._chat = shown, chat
            self.refresh()

    def line(self, width: int) -> Content:
        title, unsaved = self._chat
        left = Content.assemble(
            (f" {self._name}", "bold"),
            f"  {self._badge}" if self._badge else "",
            ("  NOT SAVED", "bold $text-error") if unsaved else "",
            f"  {title}" if title else "",
        )
        match self._shown:
            case ("loading", name):
                right = Content(f"loading {name} ")
            case ("ready", target, quant, drafter):
                fixed = len(f" {self._name}   {quant} | draft:  ")
                room = max(8, (width - fixed) // 2)
                rest = max(room, width - fixed - len(target))
                shown = one_line(target, max(room, width - fixed - len(drafter)))
                right = Content.assemble((shown, "bold"), f" {quant} ", ("|", "dim"), f" draft: {one_line(drafter, rest)} ")
            case _:
                right = Content("no model ")
        return spread(left, right, width)


class KeyBar(Line):
    """The keys that are worth knowing now; as many as fit, and the last `always` in any case."""

    def __init__(self, always: int = 0) -> None:
        super().__init__()
        self._always = always
        self._keys: list[tuple[str, str]] = []

    def show(self, keys: list[tuple[str, str]]) -> None:
        """Keys and labels, most important first."""
        if keys != self._keys:
            self._keys = keys
            self.refresh()

    def line(self, width: int) -> Content:
        items = [Content.assemble((key, "bold"), f" {label}  ") for key, label in self._keys]
        rest = items[max(0, len(items) - self._always) :] if self._always else []
        line, end = Content(" "), Content.assemble(*rest)
        for item in items[: len(items) - len(rest)]:
            if line.cell_length + item.cell_length + end.cell_length - 1 > width:
                break
            line = Content.assemble(line, item)
        return Content.assemble(line, end)
