"""Compare, bench and their results, opened from the chat. Meanwhile the chat does not listen to the engine; afterwards it puts its own
drafter back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from textual.content import Content

from app.foot import foot
from app.prompts import SETS
from app.screens.chat_config import ChatConfig
from app.terminal import one_line
from app.tree import Turn, Version
from app.widgets.prompt import PLACEHOLDER
from app.widgets.reply import Reply
from engine.catalog.specs import NGRAM, ModelSpec
from engine.protocol import Done, Generate, Message

if TYPE_CHECKING:  # imported when they are opened: the first frame does not wait for them
    from app.ground import Ground
    from app.screens.bench import BenchScreen
    from app.screens.compare import CompareScreen
    from app.screens.compare_view import Winner

PROMPT = "Write a Python function that returns the n-th Fibonacci number, with a docstring and a test."


class ChatRaces(ChatConfig):
    """The methods behind F5, F6 and /results."""

    lent = False  # another screen has the engine

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._verdicts: dict[str, dict[str, str]] = {}  # by target, then by drafter: what checks have found in this session

    @property
    def suggestion(self) -> str:
        """The next question that was not asked yet, where the surroundings know some; Enter in the empty box asks it."""
        asked = {turn.prompt for turn in self.chat.turns}
        return next((text for text in self.surroundings.suggestions if text not in asked), "")

    def suggest(self) -> None:
        """Show it in the empty box."""
        if self.surroundings.suggestions:
            shown = f"Enter asks: {self.suggestion}" if self.suggestion else PLACEHOLDER
            self.prompt.placeholder = Content(one_line(shown, 2 * max(40, self.size.width - 4)))

    async def done(self, event: Done) -> None:
        await super().done(event)
        self.suggest()

    async def do_compare(self, argument: str) -> None:
        """F5: race drafters; `argument` names them."""
        from app.compare import MOST
        from app.screens.bench import BenchScreen
        from app.screens.compare import CompareScreen

        ground = self.ground()
        screen = CompareScreen(ground, self._named(argument.split()) or ground.drafters[:MOST])
        async with self._lent(screen) as borrowed:
            winner = await self.app.push_screen_wait(screen)
            if winner is not None and winner.measure:
                bench = BenchScreen(ground, winner.measure)
                borrowed.append(bench)
                await self.app.push_screen_wait(bench)
            elif winner is not None:
                self.loaded.drafter, self.loaded.chosen = winner.drafter, True
        if winner is not None:
            await self.adopt(winner)

    async def do_bench(self, argument: str) -> None:
        """F6: `argument` names a set and drafters."""
        from app.screens.bench import BenchScreen

        words = argument.split()
        sets = [word for word in words if word in SETS]
        screen = BenchScreen(self.ground(), self._named([word for word in words if word not in SETS]), sets)
        async with self._lent(screen):
            await self.app.push_screen_wait(screen)

    def do_results(self, argument: str) -> None:
        from app.screens.results import ResultsScreen

        self.app.push_screen(ResultsScreen())

    def _named(self, names: list[str]) -> tuple[ModelSpec, ...]:
        catalog = self.surroundings.catalog()
        return tuple(spec for spec in map(catalog.drafter, names) if spec.kind != "none")

    def ground(self) -> Ground:
        """What a measurement starts from now."""
        from app.beside import others
        from app.ground import Ground

        loaded, options, target, ready = self.loaded, self.options, self.loaded.target, self.loaded.ready
        assert target is not None
        assert ready is not None
        catalog = self.surroundings.catalog()
        fits = [spec for spec in catalog.drafters_for(target) if spec.kind in ("model", "heads")]
        there = [spec for spec in fits if self.surroundings.on_disk(spec)]
        own = [loaded.drafter] if loaded.drafter.kind in ("model", "heads") else []
        turns = self.chat.turns
        unsent = self.prompt.text.strip() if not self.prompt.text.startswith("/") else ""
        before = turns if unsent else turns[:-1]
        system = (Message("system", self.chat.system),) if self.chat.system else ()
        wish = Generate(
            0, system, sampling=self.chat.sampling, stop=options.stop, k=self.chat.k, verify=options.verify, strict=options.strict
        )
        return Ground(
            client=self.client,
            target=target,
            ready=ready,
            load=loaded.options,
            drafters=tuple(dict.fromkeys((*own, NGRAM, *there))),
            drafter=loaded.drafter,
            prompt=unsent or (turns[-1].content if turns else self.suggestion or PROMPT),
            template=wish,
            history=history(before),
            method=options.method,
            sets=self.surroundings.sets,
            demo=self.surroundings.demo,
            others=tuple(others(catalog, self.surroundings.on_disk, target, (*own, *fits))),
            check=lambda spec, stop: self.surroundings.check(target, spec, stop),
            verdicts=self._verdicts.setdefault(target.name, {}),
        )

    @asynccontextmanager
    async def _lent(self, screen: CompareScreen | BenchScreen) -> AsyncIterator[list[CompareScreen | BenchScreen]]:
        """The engine is with this screen, and with those that are added; then the chat's drafter comes back, if it was changed."""
        borrowed = [screen]
        self.lent = True
        try:
            yield borrowed
        finally:
            self.lent = False
            if any(one.touched for one in borrowed):
                self.loaded.back()
            self.prompt.focus()
            self.wake()

    async def adopt(self, winner: Winner) -> None:
        """The reply of a lane becomes an answer of the chat: another version where the question is the last one."""
        from app.compare import whole_steps

        run, ready = winner.run, self.loaded.ready
        if run is None or ready is None:
            return
        turns = self.chat.turns
        if not turns or turns[-1].content != winner.prompt:
            if self.prompt.text.strip() == winner.prompt:
                self.prompt.put("")
            turn: Turn = self.chat.put(winner.prompt)
        else:
            turn = turns[-1]
        done = run.answer.done
        version = Version(done, whole_steps(run), number=turn.next_number(), model=ready.target)
        self.meter.took(run.steps, done, run.answer.stats.ttft_s, winner.plain_rate)
        version.numbers = f"{run.answer.stats.tok_per_s:.0f} tok/s · τ {run.answer.stats.tau:.1f} · race"
        turn.answered(version)
        await self._show_changed(version)
        for reply in self.query(Reply):
            if reply.version is version:
                reply.foot(foot(done, len(done.token_ids)))
        self.transcript.follow()


def history(turns: list[Turn]) -> tuple[Message, ...]:
    """Questions and answers as messages."""
    found: list[Message] = []
    for turn in turns:
        found.append(Message("user", turn.content))
        if turn.answer is not None:
            found.append(Message("assistant", turn.answer.text))
    return tuple(found)
