"""What the screen tests share: a replayed engine, a made-up machine, and patience."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from textual.screen import Screen

from app.chat import ChatOptions
from app.config import Config
from app.screens.chat import ChatScreen
from app.settings import Value
from app.store import Store
from app.surroundings import Surroundings
from app.tui import SpecChat
from app.widgets.messages import Note, UserMessage
from app.widgets.panel import Panel
from app.widgets.reply import Reply
from engine.catalog.catalog import Catalog, Defaults, Offer
from engine.catalog.hardware import Hardware
from engine.catalog.progress import Progress
from engine.catalog.specs import NGRAM, ModelSpec
from engine.catalog.vocabulary import Relation
from engine.errors import EngineError
from engine.protocol import Event, Generate, LoadOptions
from engine.replay import ReplayClient, Trace, load_trace, scripted
from engine.trace import Timed
from tests.app.screen_text import shown
from tests.held import Held, held, stuck
from tests.patience import PATIENCE_S, Patience

TRACES = Path(__file__).parents[1] / "data" / "traces"
BIG = ModelSpec("big", repo="org/big", size=1_100_000_000, params=1.5, licence="Apache-2.0", drafters=("small",))
TINY = ModelSpec("tiny", repo="org/tiny", size=98_000_000, params=0.1, licence="Apache-2.0")
SMALL = ModelSpec("small", "drafter", repo="org/small", size=491_000_000, params=0.5)
HEADS = ModelSpec("heads-for-other", "drafter", "heads", repo="org/heads", bound_to=("other",))
HARDWARE = Hardware("Linux", "A processor", 8, (), 16_000_000_000)
SHORT = "A short answer, *said* quickly.\n\nAnd a second paragraph."


DRAW_S = 5.0  # a screen that moves all the time may never be done


class Machine(Surroundings):
    """A machine whose disk and network are a set of names. `hold` keeps a download waiting."""

    def __init__(self, on_disk: tuple[str, ...] = ("big", "tiny", "small"), chats: Path | None = None) -> None:
        self.chats = chats  # the database of chats; None = in memory
        self.disk = set(on_disk)
        self.kept: dict[str, Value] = {}  # settings
        self.keys: dict[str, str] = {}
        self.config_notes: tuple[str, ...] = ()
        self.keep_error: EngineError | None = None
        self.pulled: list[str] = []
        self.hold = threading.Event()
        self.hold.set()
        self.pull_error: EngineError | None = None
        self.catalog_error: EngineError | None = None
        self.remembered: list[tuple[str, str | None]] = []

    def catalog(self) -> Catalog:
        if self.catalog_error is not None:
            raise self.catalog_error
        drafters = {"small": SMALL, "heads-for-other": HEADS, "ngram": NGRAM}
        return Catalog({"big": BIG, "tiny": TINY}, drafters, Defaults(cpu=(Offer(("tiny", "big")),)))

    def probe(self) -> Hardware:
        return HARDWARE

    def locate(self, spec: ModelSpec) -> Path | None:
        return Path(spec.name) if spec.name in self.disk else None

    def pull(self, spec: ModelSpec, progress: Callable[[Progress], None], cancelled: Callable[[], bool]) -> Path:
        progress(Progress("model.safetensors", spec.size // 2, spec.size, 12e6, 22.0, "hub"))
        while not self.hold.wait(0.01):
            if cancelled():
                raise EngineError("Stopped.", kind="cancelled")
        if self.pull_error is not None:
            raise self.pull_error
        self.pulled.append(spec.name)
        self.disk.add(spec.name)
        return Path(spec.name)

    def open_store(self) -> Store:
        return Store(self.chats)

    def disk_use(self, spec: ModelSpec) -> int:
        return spec.size if spec.name in self.disk else 0

    def disk_free(self) -> int:
        return 214_000_000_000

    def remove(self, spec: ModelSpec) -> int:
        self.disk.discard(spec.name)
        return spec.size

    def free(self, device: str) -> tuple[int, int]:
        return 4_000_000_000, 16_000_000_000

    def need(self, spec: ModelSpec, options: LoadOptions, *, beside: bool) -> int:
        return round(spec.params * 1e9)

    def recall(self, target: str, quant: str, device: str) -> dict[str, float]:
        return {"ngram": 1.31} if (target, quant, device) == ("big", "nf4", "cpu") else {}

    def check(self, target: ModelSpec, drafter: ModelSpec, stop: threading.Event | None = None) -> dict[str, Any]:
        if drafter.name == "small":
            raise EngineError("The process that reads the tokenizers crashed.", "The details are in the log.")
        shares = {"chat": 0.99, "code": 0.94}
        return {"refused": None, "method": "pf", "intersection": 39234, "coverage": shares, "reasons": ["The vocabularies differ."]}

    def config(self) -> Config:
        return Config(self.kept, self.keys, self.config_notes)

    def keep(self, path: str, value: Value | None) -> None:
        if self.keep_error is not None:
            raise self.keep_error
        self.kept = {k: v for k, v in self.kept.items() if k != path} | ({path: value} if value is not None else {})

    def relation(self, one: ModelSpec, other: ModelSpec) -> tuple[Relation, str]:
        return ("other", "90 of 100 ids differ") if other.name == "tiny" else ("same", "151,936 ids, all equal")

    def remember(self, target: ModelSpec, drafter: ModelSpec | None) -> str | None:
        self.remembered.append((target.name, drafter.name if drafter else None))
        return None


class World:
    """One application on a replayed engine."""

    def __init__(
        self,
        *replies: tuple[Timed, ...] | str,
        speed: float | None = None,
        trace: Trace | None = None,
        machine: Machine | None = None,
        options: ChatOptions | None = None,
    ) -> None:
        made = tuple(scripted(reply) if isinstance(reply, str) else reply for reply in replies)
        self.client = ReplayClient(trace or Trace(replies=made or (scripted(SHORT),)), speed)
        self.machine = machine or Machine()
        self.app = SpecChat(options or ChatOptions(target=BIG, drafter=NGRAM), self.client, self.machine)
        self.watch()

    def watch(self) -> None:
        """Know whether the screen is drawing what came, and all that it has said."""
        self.toasts: list[str] = []
        notify = self.app.notify

        def said(message: str, **looks: Any) -> None:
            self.toasts.append(message)
            notify(message, **looks)

        self.app.notify = said  # type: ignore[method-assign, assignment]
        self.drawing = 0
        take = self.screen.take

        async def taken(events: list[Event]) -> None:
            self.drawing += 1
            try:
                await take(events)
            finally:
                self.drawing -= 1

        self.screen.take = taken  # type: ignore[method-assign]

    @property
    def rests(self) -> bool:
        """No reply is under way, and the screen has drawn all that came."""
        return not self.screen.situation.generating and not self.drawing

    @property
    def screen(self) -> ChatScreen:
        return self.app.chat_screen

    @property
    def requests(self) -> list[Generate]:
        return [command for command in self.client.sent if isinstance(command, Generate)]

    @property
    def replies(self) -> list[Reply]:
        return list(self.screen.query(Reply))

    @property
    def panels(self) -> list[Panel]:
        return list(self.screen.query(Panel))

    @property
    def notes(self) -> list[str]:
        return [note.plain for note in self.screen.query(Note)]

    @property
    def asked(self) -> list[str]:
        return [message.exact for message in self.screen.query(UserMessage)]

    def shown(self) -> str:
        """The whole screen as text."""
        return shown(self.app)


async def wait_for(pilot: Pilot[int], predicate: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Let the application run until this is true and to be seen; `pilot.pause` alone may return too early."""
    patience = Patience(patience_s)
    while not predicate():
        assert patience.left(), "it did not happen; on the screen is\n" + shown(pilot.app)
        await pilot.pause(0.02)
    patience = Patience(DRAW_S)
    while not is_drawn(pilot.app.screen) and patience.left():
        await pilot.pause(0.005)


def is_drawn(screen: Screen[Any]) -> bool:
    """Nothing of the screen waits to be laid out or drawn."""
    waits = screen._layout_required or screen._repaint_required or screen._dirty_widgets or screen._callbacks
    return screen._compositor.root is not None and not waits


async def settled(pilot: Pilot[int]) -> None:
    """What is to be laid out and drawn is; where nobody does anything, the screen stays as it is."""
    before = ""
    while (now := shown(pilot.app)) != before:
        before = now
        await pilot.pause(0.3)


async def sees(world: World, pilot: Pilot[int], *texts: str) -> None:
    """Wait until all of this is on the screen."""
    await wait_for(pilot, lambda: all(text in world.shown() for text in texts))


async def started(world: World, pilot: Pilot[int]) -> None:
    """The model is loaded."""
    await wait_for(pilot, lambda: world.screen.loaded.ready is not None and not world.screen.loaded.loading and not world.drawing)


async def ask(world: World, pilot: Pilot[int], text: str) -> None:
    """Send a question and wait for the end of the reply."""
    count = len(world.requests)
    world.screen.prompt.put(text)
    await pilot.press("enter")
    await wait_for(pilot, lambda: len(world.requests) > count and world.rests)


__all__ = [
    "BIG", "SHORT", "SMALL", "TINY", "TRACES",
    "Held", "Machine", "World", "ask", "held", "load_trace", "scripted", "sees", "settled", "started", "stuck", "wait_for",
]  # fmt: skip
