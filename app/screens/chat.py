"""The chat screen: transcript, prompt, numbers, keys. Commands of the person come in through `run_command`, events through `take`.

It draws at most 15 times a second, 3 times beside a model on the CPU, and less when drawing is slow, so that it does not slow the
engine whose speed it shows.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import TextArea

from app.commands import BY_NAME, Command, bindings, completions, parse
from app.screens.chat_commands import ChatCommands
from app.screens.lists import WORDS, drafter_choices, target_choices
from app.widgets.panel import Panel
from app.widgets.prompt import Prompt
from app.widgets.too_small import TooSmall
from engine.errors import EngineError
from engine.protocol import Done, Event, Failed, Loading, Looked, Notice, Prefill, Ready, Step
from engine.words import counted

PERIOD_S = 1 / 15
PERIOD_CPU_S = 0.3  # where the model runs on the same cores: a frame stops the engine for as long as it takes
SHARE_CPU = 0.03  # and a long reply's frames, which take longer, no more than this share of the time
IDLE_S = 0.5
SLOWEST_S = 1.0
STEPS = ("message_up", "message_down", "first_message", "last_message", "version_before", "version_after", "find_next", "find_before")


class ChatScreen(ChatCommands):
    """The only screen that most people see."""

    BINDINGS = bindings("chat")
    AUTO_FOCUS = "Prompt"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._wake = asyncio.Event()
        self._choices: dict[str, list[tuple[str, str]]] = {}
        self.longest_s = 0.0  # the longest drawing so far
        self._box = Vertical(self.files, self.prompt, id="box")

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.legend
        with Horizontal(id="main"):
            yield self.transcript
            yield self.panel_of_numbers
        yield self.completion
        yield self._box
        yield self.status
        yield self.key_bar
        yield TooSmall()

    async def on_mount(self) -> None:
        self.watch(self.transcript, "scroll_y", self._show_below, init=False)
        self.show_lines()
        self.begin_settings()
        self.set_interval(0.5, self._after_downloads)
        self.run_worker(self._pump(), group="pump")
        self.run_worker(self._begin(), group="command")

    async def _begin(self) -> None:
        """Load what was asked for, or offer what there is."""
        for text in self.options.notes:
            await self.note(text)
        self.run_worker(self.resume(), group="resume")
        if self.options.target is None:
            await self.first_start()
        else:
            await self.open_target(self.options.target, offers=True)
        self.suggest()
        self.show_lines()

    # --- from the engine ---------------------------------------------------------------------------------------------

    def wake(self) -> None:
        self._wake.set()

    async def _pump(self) -> None:
        """Look for events, draw them, rest for a multiple of what the drawing took; what the screen does meanwhile counts for the next."""
        rest_s, cpu_s = 0.0, time.thread_time()
        while True:
            if self.lent:  # the chat is hidden, and its events are another screen's
                await self._wake.wait()
                self._wake.clear()
                continue
            at_rest = not (self.situation.generating or self.situation.loading)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), IDLE_S if at_rest else rest_s)
            self._wake.clear()
            events = [] if self.lent else self.client.drain()
            start_s = time.monotonic()
            await self.take(events or self._dead())
            drawn = asyncio.Event()
            self.call_after_refresh(drawn.set)
            with suppress(TimeoutError):
                await asyncio.wait_for(drawn.wait(), SLOWEST_S)
            self.transcript.grown()  # only now is the layout known
            self._show_below()
            took_s = time.monotonic() - start_s
            self.longest_s = max(self.longest_s, took_s)
            before_cpu_s, cpu_s = cpu_s, time.thread_time()
            used_s = cpu_s - before_cpu_s
            rest_s = min(SLOWEST_S, max(self.period_s, 4 * took_s, used_s / SHARE_CPU if self._beside_model else 0.0))

    @property
    def _beside_model(self) -> bool:
        """The model works on the same cores just now."""
        ready = self.loaded.ready
        return self.situation.generating and ready is not None and ready.device == "cpu"

    @property
    def period_s(self) -> float:
        """Seconds between two drawings, at least. Below a screen that covers all of it nobody sees them."""
        if not self.situation.generating:
            return PERIOD_S
        if self.app.screen is not self and not isinstance(self.app.screen, ModalScreen):
            return SLOWEST_S
        return PERIOD_CPU_S if self._beside_model else PERIOD_S

    def on_screen_resume(self) -> None:
        """What came meanwhile is drawn at once."""
        self.wake()

    def _dead(self) -> list[Event]:
        """A failure in place of the answer that a dead engine will not give."""
        waits = self.situation.generating or self.situation.loading
        if not waits or getattr(self.client, "alive", True):
            return []
        reply = self.chat.pending.reply if self.chat.pending else None
        return [Failed("The engine has ended unexpectedly.", "Leave with ^Q and start again.", "internal", reply=reply, lost=("target",))]

    async def take(self, events: list[Event]) -> None:
        """Draw what has come, in order; the steps of a reply together."""
        run: list[Prefill | Step | Done | Failed] = []
        for event in events:
            if isinstance(event, (Prefill, Step, Done)) or (isinstance(event, Failed) and event.reply is not None):
                run.append(event)
                continue
            if isinstance(event, Loading):
                self.meter.loading(event)
                continue
            await self.take_reply(run)
            run = []
            if isinstance(event, Failed) and self.looking and not self.loaded.loading:
                self.look_failed()
                await self.trouble(EngineError(event.message, event.hint, kind=event.kind), asked=False)
            elif isinstance(event, (Ready, Failed)):
                await self.load_answered(event)
                if not self.loaded.loading_target:
                    await (self.release() if self.loaded.ready is not None and isinstance(event, Ready) else self.give_back())
            elif isinstance(event, Notice):
                await self.note(event.text)
            elif isinstance(event, Looked):
                await self.looked(event)
        await self.take_reply(run)
        self.watch_saving()
        self.show_lines()

    def _show_below(self) -> None:
        """Say when there is more below the view."""
        below = self.transcript.below
        title = f"↓ {counted(below, 'line')} below · ^End follows" if below > 1 else ""
        if title != (self._box.border_title or ""):  # putting in the same draws the box anew
            self._box.border_title = title

    def on_unmount(self) -> None:
        """Whatever ends the program: what is known is on the disk."""
        self.keep_draft(now=True)
        self.keep_now(ended=True)
        self.saver.close()

    # --- from the person ---------------------------------------------------------------------------------------------

    async def action_command(self, name: str) -> None:
        """A key was pressed. Steps of the cursor are done before the next key is looked at."""
        command = BY_NAME[name]
        if name in STEPS and not command.when(self.situation):
            await getattr(self, f"do_{name}")("")
        else:
            self.run_command(command)

    def run_command(self, command: Command, argument: str = "") -> None:
        """Carry a command out, or say why not; whatever way it was called."""
        if reason := command.when(self.situation):
            self.toast(reason, "warning")
            return
        if command.usage and not command.usage.startswith("[") and not argument:
            self.prompt.put(f"/{command.slash} ")
            self.prompt.focus()
            return
        try:
            result = getattr(self, f"do_{command.name}")(argument)
        except EngineError as error:
            result = self.trouble(error)
        if inspect.isawaitable(result):
            self.run_worker(self._carry_out(command, result), group="command")
        else:
            self.show_lines()

    async def _carry_out(self, command: Command, work: Awaitable[None]) -> None:
        try:
            await work
        except EngineError as error:
            await self.trouble(error)
        self.show_lines()

    async def do_send(self, argument: str) -> None:
        text = self.prompt.text
        if self.completion.is_open and self.completion.chosen.strip() != text.strip():
            self.prompt.put(self.completion.chosen)
            return
        typed = parse(text)
        if typed.command is not None:
            self.prompt.sent(text)
            self.run_command(typed.command, typed.argument)
        elif typed.error:
            self.toast(typed.error, "warning")
        elif not text.strip() and not self.chat.attached and self.is_cut_off:
            self.run_command(BY_NAME["carry_on"])
        else:
            await self.send(typed.prompt if text.strip() else self.suggestion)

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """Offer completions."""
        text = event.text_area.text
        if not text.startswith("/"):
            self._choices.clear()
        items = completions(text, self._arguments)
        self.completion.offer([] if len(items) == 1 and items[0][0].strip() == text.strip() else items)

    def _arguments(self, name: str) -> list[tuple[str, str]]:
        """What can follow a command; looked up once per command line."""
        if name in ("draft", "model", "downloads") and name not in self._choices:
            try:
                catalog = self.surroundings.catalog()
                drafters = name == "draft"
                self._choices[name] = (
                    drafter_choices(catalog, self.surroundings, self.loaded.target)
                    if drafters
                    else target_choices(catalog, self.surroundings)
                )
            except EngineError:  # said in full when the command is sent
                self._choices[name] = []
        if name == "theme":
            return [(theme, "") for theme in sorted(self.app.available_themes)]
        if name == "preset":
            return [(f"{word} {known}", "") for word in ("use", "delete") for known in self.preset_names]
        return self._choices.get(name) or WORDS.get(name, [])

    def on_prompt_walk(self, event: Prompt.Walk) -> None:
        if self.completion.is_open:
            self.completion.move(event.step)
        else:
            self.prompt.walk(event.step)

    def on_prompt_tab(self) -> None:
        if self.completion.is_open:
            self.prompt.put(self.completion.chosen)
        else:
            self.transcript.focus()

    def on_prompt_end(self) -> None:
        self.transcript.follow()

    def on_panel_chosen(self, event: Panel.Chosen) -> None:
        """An answer to a panel."""
        event.stop()
        self.prompt.focus()
        self.run_worker(self._chosen(event.name), group="command")

    async def _chosen(self, name: str) -> None:
        if name in ("model", "draft"):
            self.run_command(BY_NAME[name])
            return
        try:
            if not await self.load_choice(name):
                await self.reply_choice(name)
        except EngineError as error:
            await self.trouble(error)
        self.show_lines()
