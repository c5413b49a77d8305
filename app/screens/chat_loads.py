"""Loading, swapping and fetching models for the chat screen. Nothing is downloaded before the person has pressed Enter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.screens.chat_saving import SaveFlow
from app.screens.failures import SHORT_CONTEXT, load_panel
from app.screens.lists import in_use
from app.widgets.panel import Panel
from engine.catalog.specs import AUTO, NGRAM, NONE, ModelSpec
from engine.errors import EngineError
from engine.protocol import Failed, Load, LoadOptions, Ready, SwapDrafter


class LoadFlow(SaveFlow):
    """From a wish to a loaded model, or to a panel that says why not."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._notes_said: set[tuple[str, str, str]] = set()  # target, drafter, text

    failed_load: Load | SwapDrafter | None = None  # what the last failure panel is about

    async def open_target(
        self, target: ModelSpec, drafter: ModelSpec | None = None, options: LoadOptions | None = None, *, offers: bool = False
    ) -> None:
        """Load a target and a drafter; asks first where files are missing. With `offers` another target can be chosen then."""
        wished = drafter or self.loaded.drafter
        fetched = await self.fetch([target, wished], offers=offers)
        if fetched is None:
            if offers and self.surroundings.on_disk(target):
                self.loaded.load(target, NONE, options)  # only the drafter was refused
                self.wake()
            elif offers:
                await self._say_none()
            return
        chosen = next((spec for spec in fetched if spec.role == "target"), target)
        self.loaded.load(chosen, wished if chosen == target else AUTO, options)
        self.wake()

    async def swap(self, drafter: ModelSpec, method: str | None = None) -> None:
        """Put another drafter beside the target, also during a reply; by another method than usual where one is said."""
        if await self.fetch([drafter]) is None:
            return
        self.loaded.chosen = True
        self.loaded.swap(drafter, method)
        if self.loaded.target is None:
            self.toast(f"The drafter will be {drafter.name}, once a model is loaded.")
        self.wake()

    async def fetch(self, specs: list[ModelSpec], *, offers: bool = False) -> list[ModelSpec] | None:
        """What is there now, perhaps after a download that the person agreed to; None for nothing. Runs inside a worker."""
        missing = [spec for spec in specs if not self.surroundings.on_disk(spec)]
        if not missing:
            return specs
        for spec in missing:
            if spec.path is not None:
                await self.trouble(EngineError(f"There is nothing at {spec.path}.", "Check the path.", kind="missing_weights"))
                return None
        if self.options.offline:
            names = " and ".join(spec.name for spec in missing)
            hint = f"Run `specchat pull {missing[0].name}` while online, or start without --offline."
            await self.trouble(EngineError(f"Not on this machine, and --offline forbids the download: {names}.", hint))
            return None
        return await self._offer(missing, offers=offers)

    async def first_start(self) -> None:
        """No model was chosen: offer what suits this machine."""
        if chosen := await self._offer([], offers=True):
            await self.open_target(chosen[0])
        else:
            await self._say_none()

    async def _offer(self, missing: list[ModelSpec], *, offers: bool) -> list[ModelSpec] | None:
        """The screen that asks before it downloads."""
        from app.screens.pull import PullScreen

        fetched = await self.app.push_screen_wait(PullScreen(self.surroundings, missing, offers=offers, offline=self.options.offline))
        self.prompt.focus()
        return fetched

    async def _say_none(self) -> None:
        await self.panel(Panel("No model is loaded.", "", "/model lists the models; /model NAME loads one."), asked=True)

    async def load_answered(self, event: Ready | Failed) -> None:
        """A load or swap has ended."""
        before = self.loaded.ready
        command = self.loaded.answered(event)
        if isinstance(event, Failed):
            self.meter.load_failed()
            self.failed_load = command
            if event.kind == "cancelled":
                await self.note(event.message)
            else:
                await self.panel(load_panel(event, command, offline=self.options.offline))
            return
        self.meter.loaded(event, same_target=isinstance(command, SwapDrafter) and before is not None)
        for text in event.notes:
            if (said := (event.target, event.drafter, text)) not in self._notes_said:  # not again at each swap back and forth
                self._notes_said.add(said)
                await self.note(text)
        if isinstance(command, SwapDrafter):
            await self.note(f"Drafter: {in_use(event.drafter, event.method)}")
        if self.loaded.target is not None:
            warning = self.surroundings.remember(self.loaded.target, self.loaded.drafter if self.loaded.chosen else None)
            if warning:
                self.toast(warning, "warning")

    async def load_choice(self, name: str) -> bool:
        """What was chosen on the panel of a failed load; False when the choice is not about a load."""
        command = self.failed_load
        if name == "ngram":
            await self.swap(NGRAM)
        elif name == "no_drafter" and isinstance(command, Load):
            await self.open_target(command.target, NONE)
        elif name == "short_context" and isinstance(command, Load):
            await self.open_target(command.target, command.drafter, replace(command.options, context=SHORT_CONTEXT))
        elif name == "four_bits" and isinstance(command, Load):
            await self.open_target(command.target, command.drafter, replace(command.options, quant="nf4"))
        elif name == "pull" and isinstance(command, Load):
            await self.open_target(command.target, command.drafter)
        elif name == "pull" and isinstance(command, SwapDrafter):
            await self.swap(command.drafter, command.method)
        else:
            return False
        return True
