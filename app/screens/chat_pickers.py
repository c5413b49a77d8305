"""Choosing models: the pickers, the trial, downloads and settings, opened from the chat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from app.console import Interrupt
from app.downloads import Downloads
from app.screens.chat_views import ChatViews
from engine.catalog.specs import ModelSpec

if TYPE_CHECKING:  # imported when they are opened: the first frame does not wait for them
    from app.screens.picker import Chosen, PickerScreen
    from app.trial import Trial


class ChatPickers(ChatViews):
    """What the person chooses is loaded or fetched here."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.downloads = Downloads(self.surroundings)
        self._trials: dict[str, dict[str, Trial]] = {}  # by target, then by drafter

    async def pick_drafter(self) -> None:
        """The list of drafters; what is chosen is put beside the target."""
        from app import picks
        from app.screens.picker import PickerScreen

        catalog, target, ready = self.surroundings.catalog(), self.loaded.target, self.loaded.ready
        screen = PickerScreen(
            f"Drafter for {target.name}" if target is not None else "Drafter",
            lambda: picks.drafters(catalog, self.surroundings, self.loaded.options, target, ready),
            self._attempt,
            lambda spec: picks.checked(self.surroundings.check(target, spec)) if target is not None else [],
            target=target,
            k=self.chat.k,
            busy=self.situation.generating or self.situation.loading or ready is None,
        )
        if target is not None:
            screen.trials = self._trials.setdefault(f"{target.name} {ready.quant if ready else ''}", {})
        chosen = await self._open(screen)
        if chosen is None:
            return
        if chosen.fetch:
            self.open_downloads(chosen.spec)
            return
        if chosen.k != self.chat.k:
            self.do_k("auto" if chosen.k is None else str(chosen.k))
        await self.swap(replace(chosen.spec, role="drafter"))

    async def pick_target(self) -> None:
        """The list of targets; what is chosen is loaded."""
        from app import picks
        from app.screens.picker import PickerScreen

        catalog, ready = self.surroundings.catalog(), self.loaded.ready
        screen = PickerScreen("Model", lambda: picks.targets(catalog, self.surroundings, self.loaded.options, ready))
        chosen = await self._open(screen)
        if chosen is not None and chosen.fetch:
            self.open_downloads(chosen.spec)
        elif chosen is not None:
            await self.open_target(chosen.spec, self.loaded.fitting(chosen.spec, catalog.drafters_for(chosen.spec)))

    def do_downloads(self, argument: str) -> None:
        """The downloads; with a name, fetch that at once."""
        catalog = self.surroundings.catalog()
        self.open_downloads(catalog.heads(argument) or catalog.target(argument) if argument else None)

    def open_downloads(self, start: ModelSpec | None = None) -> None:
        """Show the downloads and perhaps begin one."""
        from app.screens.downloads import DownloadsScreen

        ready = self.loaded.ready
        in_use = {ready.target, *ready.drafter.split("+")} if ready is not None else set()
        screen = DownloadsScreen(self.surroundings, self.downloads, in_use=in_use, offline=self.options.offline, start=start)
        self.app.push_screen(screen)

    def _after_downloads(self) -> None:
        """Move the queue on, say what has ended, and show in the header how far the running one is."""
        if not self.downloads.busy:
            return
        from app.screens.downloads import DownloadsScreen

        ended = self.downloads.look()
        self.app.sub_title = self.downloads.badge
        if ended is None:
            return
        if ended.error is None:
            self.toast(f"{ended.spec.name} is on this machine now.")
        else:
            self.toast(f"{ended.spec.name}: {ended.error.message}", "warning")
        if isinstance(self.app.screen, DownloadsScreen):
            self.app.screen.arrived()

    def on_unmount(self) -> None:
        self.downloads.close()

    async def _open(self, screen: PickerScreen) -> Chosen | None:
        chosen = await self.app.push_screen_wait(screen)
        self.prompt.focus()
        return chosen

    def _attempt(self, spec: ModelSpec, interrupt: Interrupt, note: Callable[[str], None]) -> Trial:
        """Try a drafter on the chat's last question; runs in a thread, and has the engine for itself meanwhile."""
        from app import trial
        from app.driver import Driver

        self.lent = True
        try:
            driver, again = Driver(self.client, interrupt), Driver(self.client, Interrupt())
            request = trial.request_for(self.chat)
            found, _ = trial.run(driver, again, spec, self.loaded.drafter, self.loaded.method, request, note)
        finally:
            self.lent = False
        return found
