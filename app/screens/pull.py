"""Fetch models: what is missing, what it weighs, and a progress bar. Also the first start, with offers for this machine.

Nothing is downloaded before Enter. Ends with the models that are on this machine now, or None.
"""

from __future__ import annotations

import threading
from typing import Protocol, runtime_checkable

from textual import events
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.commands import bindings, place_bar
from app.download import Download
from app.screens.name import NameScreen
from app.sizes import by_source, short
from app.surroundings import Surroundings
from app.terminal import for_terminal, one_line
from app.widgets.line import KeyBar
from app.widgets.too_small import TooSmall
from engine.catalog.hardware import Hardware
from engine.catalog.progress import human
from engine.catalog.specs import ModelSpec
from engine.errors import EngineError
from engine.words import counted

LOOK_S = 0.25
BAR = 30
Bundle = list[ModelSpec]
WAYS = (("own", "another model", "a folder, a .gguf file, or a hub id"), ("demo", "the demo", "recorded replies, needs no model"))


@runtime_checkable
class HasDemo(Protocol):
    """An application that opens the demo when it is left with this."""

    wants_demo: bool


class PullScreen(Screen[Bundle | None]):
    """`missing` is what is wanted; `offers` adds what suits this machine, to choose from."""

    WHERE = "pull"
    BINDINGS = bindings("pull")

    def __init__(self, surroundings: Surroundings, missing: Bundle, *, offers: bool = False, offline: bool = False) -> None:
        super().__init__()
        self._surroundings = surroundings
        self._missing = missing
        self._offers = offers
        self._offline = offline
        self._bundles: list[Bundle] = [missing] if missing else []
        self._chosen: Bundle = []
        self.download: Download | None = None
        self._sized = False  # the state line says what a download takes
        self._facts = Static(id="facts")
        self._list = OptionList(id="bundles", markup=False)
        self._state = Static(id="state")

    def compose(self) -> ComposeResult:
        yield Static(Content.styled(" specchat   models", "bold"), id="title")
        with VerticalScroll(id="pull"):
            yield self._facts
            yield self._list
            yield self._state
        yield KeyBar()
        yield TooSmall()

    def on_mount(self) -> None:
        self._list.focus()
        self.set_interval(LOOK_S, self._look)
        self.query_one("#pull", VerticalScroll).can_focus = False
        self._keys()
        if self._offers:
            self._facts.update(Content("Looking at this machine…"))
            threading.Thread(target=self._probe, name="specchat-probe", daemon=True).start()
        else:
            self._facts.update(Content("Not on this machine yet. Nothing is downloaded before you press Enter.\n"))
            self._fill()

    def _probe(self) -> None:
        """Hardware and offers; in a thread, since a broken driver can take seconds."""
        try:
            hardware = self._surroundings.probe()
            found: tuple[Hardware | None, Bundle, EngineError | None] = (hardware, self._surroundings.catalog().offers(hardware), None)
        except EngineError as error:
            found = (None, [], error)
        self.call_later(self._probed, *found)

    def _probed(self, hardware: Hardware | None, offers: Bundle, error: EngineError | None) -> None:
        if error is not None or hardware is None:
            self._facts.update("")
            self._say_error(error or EngineError("This machine could not be looked at."))
        else:
            self._facts.update(facts(hardware, self._surroundings.disk_free()))
        known = {spec.name for bundle in self._bundles for spec in bundle}
        self._bundles += [[spec] for spec in offers if spec.name not in known]
        self._fill()

    def _fill(self) -> None:
        self._list.clear_options()
        titles = [names(bundle) for bundle in self._bundles] + [title for _, title, _ in WAYS if self._offers]
        width = max(map(len, titles), default=0)
        for n, bundle in enumerate(self._bundles):
            self._list.add_option(Option(self._row(bundle, width, n + 1, best=n == 0 and bundle is not self._missing)))
        if self._offers:
            for n, (_, title, about) in enumerate(WAYS, len(self._bundles) + 1):
                self._list.add_option(Option(Content.assemble((f"{n}  {title:<{width}}  ", "bold"), about)))
        self._list.highlighted = 0 if self._list.option_count else None

    def _row(self, bundle: Bundle, width: int, number: int, *, best: bool) -> Content:
        there = all(self._surroundings.on_disk(spec) for spec in bundle)
        missing = self._missing_of(bundle)
        about = ["on this machine" if there else size if (size := short(*missing)) != "?" else "size not known"]
        about += [licence for licence in {spec.licence for spec in bundle} if licence]
        about += ["recommended"] if best else []
        about += ["needs an account on the hub"] if any(spec.gated for spec in bundle) and not there else []
        return Content.assemble((f"{number}  {names(bundle).ljust(width + 2)}", "bold"), for_terminal(" · ".join(about)))

    def _missing_of(self, bundle: Bundle) -> Bundle:
        return [spec for spec in bundle if not self._surroundings.on_disk(spec)]

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """What of the chosen row will be fetched, and from where."""
        if self.download is None:
            size = by_source(*self._missing_of(self._bundles[event.option_index])) if event.option_index < len(self._bundles) else ""
            sources = " from " in size
            if sources or self._sized:  # an error stays until there is something else to say
                self._state.update(Content(f"\nTo download: {size}." if sources else ""))
            self._sized = sources

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter: fetch what is missing of this bundle, or go on if nothing is."""
        if self.download is not None:
            return
        if event.option_index >= len(self._bundles):
            self._other_way(WAYS[event.option_index - len(self._bundles)][0])
            return
        self._chosen = self._bundles[event.option_index]
        missing = self._missing_of(self._chosen)
        if not missing:
            self.dismiss(self._chosen)
        elif self._offline:
            hint = f"Run `specchat pull {missing[0].name}` while online, or start without --offline."
            self._say_error(EngineError("--offline forbids the download.", hint))
        else:
            self._state.update("")
            self.download = Download(self._surroundings, missing)
            self._keys()

    def on_key(self, event: events.Key) -> None:
        """1 to 9: a row."""
        if event.key.isdecimal() and 0 < int(event.key) <= self._list.option_count:
            event.stop()
            self._list.highlighted = int(event.key) - 1
            self._list.action_select()

    def _other_way(self, name: str) -> None:
        if name == "demo":
            assert isinstance(self.app, HasDemo)
            self.app.wants_demo = True
            self.app.exit(0)
        else:
            self.run_worker(self._own(), group="own")

    async def _own(self) -> None:
        """A model that the person names: what is here is taken, what is not joins the list."""
        said = await self.app.push_screen_wait(NameScreen("A folder, a .gguf file, or a hub id (org/name):"))
        if not said:
            return
        try:
            spec = self._surroundings.catalog().target(said)
            if spec.path is not None and not self._surroundings.on_disk(spec):
                raise EngineError(f"There is nothing at {spec.path}.", "Check the path.", kind="missing_weights")
        except EngineError as error:
            self._say_error(error)
            return
        if self._surroundings.on_disk(spec):
            self.dismiss([spec])
            return
        self._bundles.append([spec])
        self._fill()
        self._list.highlighted = len(self._bundles) - 1

    def _look(self) -> None:
        """Draw how far the download is, or end."""
        if (download := self.download) is None:
            return
        if download.running:
            self._state.update(progress_text(download, self.size.width))
            return
        self.download = None
        self._keys()
        if download.error is not None:
            self._say_error(download.error)
        else:
            self.dismiss(self._chosen)

    def action_command(self, name: str) -> None:
        """The one command with a key of its own: back."""
        self.do_pull_back("")

    def do_pull_back(self, argument: str) -> None:
        """Stop the download; without one, leave."""
        if self.download is None:
            self.dismiss(None)
            return
        self.download.cancel()
        self.download = None
        self._keys()
        self._state.update(Content("\nStopped. What was fetched is kept; Enter goes on from there."))

    def on_unmount(self) -> None:
        if self.download is not None:
            self.download.cancel()

    def _say_error(self, error: EngineError) -> None:
        self._sized = False
        text = Content.assemble("\n", (f"! {for_terminal(error.message)}", "bold $text-error"), f"\n{for_terminal(error.hint)}")
        self._state.update(text)
        self._state.scroll_visible(animate=False)

    def _keys(self) -> None:
        keys = [("Esc", "stop")] if self.download else place_bar("pull", rebound=getattr(self.app, "rebound", {}))
        self.query_one(KeyBar).show([*keys, ("^Q", "quit")])


def names(bundle: Bundle) -> str:
    """The names of a bundle on one line."""
    return " + ".join(one_line(spec.name, 40) for spec in bundle)


def facts(hardware: Hardware, disk_free: int) -> Content:
    """What this machine has, and what that means."""
    if hardware.gpus:
        gpu = f"{one_line(hardware.gpus[0].name)}, {hardware.gpus[0].total / 1e9:.0f} GB"
    else:
        gpu = "none found: small models run well on the CPU"
    rows = [
        ("GPU", gpu),
        ("CPU", f"{one_line(hardware.cpu)}, {counted(hardware.cores, 'core')}"),
        ("Memory", f"{hardware.ram / 1e9:.0f} GB"),
        ("Disk", f"{human(disk_free)} free"),
    ]
    table = "\n".join(f"  {name:<8}{text}" for name, text in rows)
    return Content.assemble(
        ("This machine\n", "bold"),
        f"{table}\n\n",
        ("Models that suit it\n", "bold"),
        "  Nothing is downloaded before you press Enter.\n",
    )


def progress_text(download: Download, width: int) -> Content:
    """Name, bar, bytes, rate, time left."""
    progress = download.progress
    title = f"\nDownloading {one_line(download.current.name)}"
    if progress is None:
        return Content(f"{title}: connecting…")
    parts = [f"{human(progress.done)} of {human(progress.total)}" if progress.total else human(progress.done)]
    if progress.rate > 0:
        parts.append(f"{human(progress.rate)}/s")
    if progress.left_s is not None:
        parts.append(f"{time_left(progress.left_s)} left")
    share = min(1.0, progress.done / progress.total) if progress.total else 0.0
    full = round(BAR * share)
    bar = f"{'█' * full}{'░' * (BAR - full)} {share:.0%}  " if progress.total else ""
    where = f"from the {'hub' if progress.source == 'hub' else 'package index'}: {one_line(progress.file, max(20, width - 30))}"
    note = f"\n{one_line(progress.note, 200)}" if progress.note else ""
    return Content.assemble((title, "bold"), f"\n{bar}{' · '.join(parts)}\n", (where + note, "dim"))


def time_left(seconds: float) -> str:
    """42 s, 3:05 min, 1:20 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60}:{whole % 60:02} min" if whole < 3600 else f"{whole // 3600}:{whole % 3600 // 60:02} h"
