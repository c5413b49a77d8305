"""What is loaded and what is being loaded, seen from the screen: sends Load and SwapDrafter, matches the answers. No widgets."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from engine.catalog.specs import AUTO, NONE, ModelSpec
from engine.client import Client
from engine.protocol import Failed, Load, LoadOptions, Ready, SwapDrafter


class Loaded:
    """The models behind one client. Loads are answered in the order in which they were sent."""

    def __init__(self, client: Client, options: LoadOptions, method: str, drafter: ModelSpec) -> None:
        self.ready: Ready | None = None
        self.target: ModelSpec | None = None  # loaded, or being loaded
        self.drafter = drafter  # the person's wish
        self.chosen = False  # the person chose the drafter in this session
        self.options = options
        self._client = client
        self.method = method
        self.way: str | None = None  # the method that was chosen with the drafter
        self._waiting: deque[Load | SwapDrafter] = deque()
        self._before: ModelSpec | None = None

    @property
    def loading(self) -> str:
        """The name of what is being loaded, "" for nothing."""
        if not self._waiting:
            return ""
        first = self._waiting[0]
        return first.target.name if isinstance(first, Load) else first.drafter.name

    @property
    def loading_target(self) -> bool:
        """A target is on its way."""
        return any(isinstance(command, Load) for command in self._waiting)

    def load(self, target: ModelSpec, drafter: ModelSpec | None = None, options: LoadOptions | None = None) -> None:
        """Load a target; `drafter` and `options` become the new wishes."""
        self.drafter = drafter or self.drafter
        self.options = options or self.options
        if not self.loading_target:
            self._before = self.target
        self.target, self.way = target, None
        self._send(Load(target, self.drafter, self.options, self.method))

    def swap(self, drafter: ModelSpec, method: str | None = None) -> None:
        """Another drafter, beside the target; the usual method where none is said."""
        self.drafter, self.way = drafter, method
        if self.target is not None:
            self._send(SwapDrafter(drafter, method or self.method))

    def back(self) -> None:
        """The person's wish again, after others have used the engine."""
        self.swap(self.drafter, self.way)

    def answered(self, event: Ready | Failed) -> Load | SwapDrafter | None:
        """An answer has come; returns the command that it answers. A Load that lost only its drafter is answered by Ready, too."""
        command = self._waiting[0] if self._waiting else None
        if isinstance(event, Failed):
            self.lost(event)
            if isinstance(command, Load) and event.lost == ("drafter",):
                return command
            if isinstance(command, SwapDrafter) and len(self._waiting) == 1:  # a newer wish stands
                self.way = None  # it was refused: what comes back takes the usual one
        if self._waiting:
            self._waiting.popleft()
        if isinstance(event, Ready):
            self.ready = event
        elif isinstance(command, Load) and not self.loading_target:
            self.target = self._before if self.ready is not None else None
        return command

    def lost(self, event: Failed) -> None:
        """A failure may have cost a model."""
        if "target" in event.lost:
            self.ready = None
        elif "drafter" in event.lost:
            self.drafter = NONE
            if self.ready is not None:
                self.ready = replace(self.ready, drafter="none", method="none")

    def fitting(self, target: ModelSpec, fits: list[ModelSpec]) -> ModelSpec:
        """The drafter to load with another target: the one in use where it fits, else the choice is the engine's."""
        if self.drafter.kind in ("none", "ngram", "auto") or self.drafter in fits:
            return self.drafter
        return AUTO

    def _send(self, command: Load | SwapDrafter) -> None:
        self._waiting.append(command)
        self._client.send(command)
