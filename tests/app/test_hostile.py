"""Texts that would do harm as markup or on a terminal, in models' words, names, paths and errors: shown as text, nothing executed."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.config import Config
from app.record import Record
from app.screens.steps import explain, pieces_by_step, visible
from app.widgets.stats_panel import panel
from app.widgets.token_view import coloured
from engine.catalog.catalog import Catalog
from engine.catalog.specs import NGRAM, ModelSpec
from engine.errors import EngineError
from engine.protocol import Segment, Step
from engine.trace import READY
from tests.app.test_stats_panel import overlay
from tests.app.tui_world import BIG, SHORT, SMALL, Machine, World, ask, sees, started, wait_for

NASTY = "[/] [bold]x \x1b]52;c;aGk=\x07\x1b[2J\x1b]0;t\x07 \x00\u202e {0} $x <b>" + "y" * 40
BAD = ["[/]", "[bold", "\x1b]52;c;x\x07", "\u202e", "\x00", "\r\n", "\x9b2J"]
PIECES = st.lists(
    st.tuples(
        st.one_of(st.text(), st.sampled_from(["[/]", "[bold", "\x1b]52;c;x\x07", "\u202e", "\x00", "\r\n", "\x9b2J"])), st.integers(1, 6)
    ),
    max_size=12,
)


def harmless(text: str) -> None:
    for character in text:
        assert character == "\n" or unicodedata.category(character) not in ("Cc", "Cs"), repr(character)
        assert character not in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@given(PIECES)
def test_tokens_and_steps_are_harmless(pieces: list[tuple[str, int]]) -> None:
    """Whatever the pieces are: one piece of text each, in order, with nothing that a terminal would obey."""
    segments = [Segment(text, "kept", (n,), 1, step) for n, (text, step) in enumerate(pieces)]
    content, starts = coloured(segments)
    harmless(content.plain.replace("\t", " "))
    assert starts == sorted(starts)
    record = Record()
    for step in range(1, 7):
        mine = tuple(segment for segment in segments if segment.step == step)
        record.add(Step(1, step, mine, len(mine), 3, 1, 3, 0.0, 0.0, 0.0, 0.0, 0.1, note="\x1b[31m[/]"))
    for number, mine in pieces_by_step(record).items():
        harmless(explain(record.steps[number - 1], mine).plain)
        for piece in mine:
            harmless(visible(piece))
            assert "\n" not in visible(piece)


@given(st.text(max_size=30))
def test_names_in_the_panel_are_harmless(name: str) -> None:
    ready = replace(READY, device=name, target=name, drafter=name)
    for beside, width in ((True, 31), (False, 78)):
        harmless(panel(overlay(), ready, width, beside=beside).plain)


class Nasty(Machine):
    """Everything that has a name or a text has a bad one."""

    def catalog(self) -> Catalog:
        bad = ModelSpec(NASTY, repo="org/x", size=5, params=0.1, licence=NASTY, note=NASTY)
        heads = ModelSpec("heads", "drafter", "heads", repo="org/h", bound_to=(NASTY,), note=NASTY)
        return Catalog({"big": BIG, NASTY: bad}, {"heads": heads, "ngram": NGRAM, "small": SMALL})

    def config(self) -> Config:
        return Config({"chat.system": "[/] [bold]"}, notes=(NASTY,))


async def test_every_list_survives_bad_names() -> None:
    """Pickers, downloads, settings, steps and the chat with them: drawn as symbols, and the program goes on."""
    machine = Nasty(("big", NASTY))
    machine.pull_error = EngineError(NASTY, NASTY)
    world = World(NASTY * 2, machine=machine)
    async with world.app.run_test(size=(110, 30), notifications=True) as pilot:
        await started(world, pilot)
        await ask(world, pilot, NASTY)
        for key in ("ctrl+t", "f3", "ctrl+g", "ctrl+l", "f4", "f2"):
            await pilot.press(key)
            if key != "ctrl+t":
                await wait_for(pilot, lambda: world.app.screen is not world.screen)
            await pilot.pause(0.2)
            if key in ("ctrl+g", "f4", "ctrl+l"):
                await pilot.press(*(["b"] if key == "ctrl+g" else []), "down", "down")
                await sees(world, pilot, "[/]")
            harmless(world.shown())
            if key != "ctrl+t":
                await pilot.press("escape")
                await wait_for(pilot, lambda: world.app.screen is world.screen)
        await ask(world, pilot, "still there?")
        assert world.app.is_running
        assert SHORT not in world.shown()
