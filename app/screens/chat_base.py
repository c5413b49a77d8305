"""The parts of the chat screen that all of its flows share: the widgets, the conversation, the models, and small ways to speak."""

from __future__ import annotations

import time

from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from app.chat import Chat, ChatOptions
from app.commands import Situation, key_bar
from app.loaded import Loaded
from app.meter import Meter, Numbers
from app.saver import Saver
from app.surroundings import Surroundings
from app.terminal import for_terminal
from app.tree import Turn
from app.widgets.completion import Completion
from app.widgets.line import HeaderBar, KeyBar
from app.widgets.messages import Note, attachment_line
from app.widgets.panel import Panel
from app.widgets.prompt import Prompt
from app.widgets.stats_panel import StatsPanel
from app.widgets.status_line import StatusLine
from app.widgets.token_view import Legend
from app.widgets.transcript import Transcript
from engine.client import Client
from engine.errors import EngineError

NUMBERS_S = 0.25  # nobody reads digits faster
PANEL_S = 0.5


class ChatBase(Screen[None]):
    """State and widgets."""

    def __init__(self, client: Client, options: ChatOptions, surroundings: Surroundings) -> None:
        super().__init__()
        self.opened_s = time.time()  # seconds since 1970
        self.client = client
        self.options = options
        self.surroundings = surroundings
        self.chat = Chat(options)
        self.loaded = Loaded(client, options.load, options.method, options.drafter)
        self.meter = Meter()
        self._state, self._numbers_s = "", 0.0
        self.lent = False  # another screen speaks to the engine itself: a trial, a race
        self.held = False  # a question waits for the model
        self.saver = Saver(surroundings.open_store)
        self.known: set[int] = set()  # keys of messages that the saver has
        self.editing: Turn | None = None  # the question that what is in the box will stand beside
        self.thinkers: set[str] = set()  # models whose template opens the thoughts
        self.header = HeaderBar()
        self.legend = Legend()
        self.tokens_on = False  # the token view
        self.transcript = Transcript()
        self.completion = Completion()
        self.prompt = Prompt()
        self.files = Static(id="files")  # attached to the next question
        self.status = StatusLine()
        self.panel_of_numbers = StatsPanel()
        self._panel_s = 0.0
        self.key_bar = KeyBar(always=2)

    @property
    def situation(self) -> Situation:
        """What the commands ask about."""
        return Situation(
            ready=self.loaded.ready is not None,
            generating=self.chat.pending is not None,
            loading=bool(self.loaded.loading),
            turns=len(self.chat.turns),
            text=self.chat.last is not None or bool(self.chat.pending),
        )

    def wake(self) -> None:
        """Look for events soon: something was sent."""
        raise NotImplementedError

    def show_lines(self) -> None:
        """Bring header, status line and key bar up to date; each repaints only what has changed."""
        loading = self.loaded.loading if self.loaded.loading_target else ""
        self.header.show(self.loaded.ready, loading, self.chat.k, self.chat.name, unsaved=self.saver.problem is not None)
        numbers = self.meter.numbers()
        if numbers.state == "idle" and self.loaded.loading_target and self.loaded.ready is None:
            numbers = Numbers("LOAD", "starting the engine")
        now_s = time.monotonic()
        if numbers.state != self._state or now_s - self._numbers_s >= NUMBERS_S:
            self._state, self._numbers_s = numbers.state, now_s
            if self.status.display:
                self.status.show(numbers)
            self._show_panel(now_s)
        self.key_bar.show(key_bar(self.situation, getattr(self.app, "rebound", {})))

    def _show_panel(self, now_s: float) -> None:
        """Bring the panel up to date, twice a second, if anybody sees it."""
        if self.panel_of_numbers.display and (now_s - self._panel_s >= PANEL_S or not self.situation.generating):
            self._panel_s = now_s
            self.panel_of_numbers.show(self.meter.overlay(), self.loaded.ready)

    def show_attached(self) -> None:
        """The files that go with the next question, and whether it stands beside another one."""
        lines = ["Editing a question: Enter sends it as a branch, Esc leaves"] if self.editing is not None else []
        lines += [attachment_line(file) for file in (self.editing or self.chat).attached]
        self.files.update(Content("\n".join(lines)))
        self.files.display = bool(lines)

    def toast(self, text: str, severity: str = "information") -> None:
        """A short confirmation in the corner."""
        self.notify(for_terminal(text), severity="warning" if severity == "warning" else "information", timeout=5, markup=False)

    async def note(self, text: str) -> None:
        """A quiet line in the transcript."""
        await self.transcript.add(Note(text))

    async def panel(self, panel: Panel, *, asked: bool = False) -> None:
        """A box in the transcript. One that asks gets the focus, so it is gone to: keys are never answered by what is out of sight."""
        await self.transcript.show(panel, go=asked or bool(panel.choices))
        if panel.choices:
            panel.focus()

    async def trouble(self, error: EngineError, *, asked: bool = True) -> None:
        """An error of ours as a panel; mostly the person has just asked for what fails."""
        await self.panel(Panel(error.message, "", error.hint, kind="error"), asked=asked)
