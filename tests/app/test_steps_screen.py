"""The step inspector: one row per step with the verifier's counts, explained in words, and as a table to copy."""

from __future__ import annotations

from dataclasses import replace

from textual.app import App

from app.record import Record
from app.screens.steps import StepsScreen, explain, pieces_by_step, table, visible
from app.widgets.token_view import colours
from engine.protocol import Segment, Step
from engine.trace import scripted
from tests.app.screen_text import shown
from tests.app.tui_world import wait_for

WORDS = "one two three four five six seven eight nine ten eleven twelve"


def record(text: str = WORDS, **how) -> Record:  # type: ignore[no-untyped-def]
    made = Record()
    for _, event in scripted(text, **how):
        if isinstance(event, Step):
            made.add(event)
    return made


class Host(App[None]):
    def __init__(self, of: Record) -> None:
        super().__init__()
        self.record = of

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return colours(True)

    def on_mount(self) -> None:
        self.push_screen(StepsScreen(self.record, "big"))


async def test_rows_are_the_steps() -> None:
    app = Host(record(kept=(4, 1, 0)))
    async with app.run_test(size=(100, 24)) as pilot:
        await wait_for(pilot, lambda: "Step 1: drafted 4, kept 4" in shown(app))
        text = shown(app)
        assert "4 steps · 12 tokens · τ 3.00" in text
        rows = [row.split() for row in text.split("\n") if row.strip()[:1].isdigit()]
        assert [row[0] for row in rows] == ["1", "2", "3", "4"]
        assert "4/4" in rows[0]
        assert [cell for cell in rows[1] if cell.startswith(("1/4", "~3~"))] == ["1/4", "~3~"]
        assert "own token: bonus" in text
        await pilot.press("down")
        await wait_for(pilot, lambda: "Step 2: drafted 4, kept 1, emitted 2; 3 dropped from position 2 on" in shown(app))
        assert "own token: correction" in shown(app)


async def test_only_wrong_drafts_copy_and_back() -> None:
    copied: list[str] = []
    app = Host(record(kept=(4, 1)))
    app.copy_to_clipboard = copied.append  # type: ignore[method-assign]
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await wait_for(pilot, lambda: "Step 1:" in shown(app))
        await pilot.press("r")
        await wait_for(pilot, lambda: "Step 2:" in shown(app))
        assert "4/4" not in shown(app)
        await pilot.press("c")
        assert copied == [table(app.record)]
        await pilot.press("r")
        await wait_for(pilot, lambda: "4/4" in shown(app))
        await pilot.press("escape")
        await wait_for(pilot, lambda: not isinstance(app.screen, StepsScreen))


async def test_hostile_text_many_steps_and_small_windows() -> None:
    """Markup and controls are shown as text; a thousand steps open; a resize keeps the row."""
    app = Host(record("[/] [bold]x \x1b]52;c;x\x07 " + "word " * 3000, kept=(2,)))
    async with app.run_test(size=(60, 16)) as pilot:
        await wait_for(pilot, lambda: "Step 1:" in shown(app))
        assert "[/]" in shown(app)
        await pilot.press("down", "down")
        await wait_for(pilot, lambda: "Step 3:" in shown(app))
        await pilot.resize_terminal(120, 40)
        await wait_for(pilot, lambda: "␛]52;c;x␇" in shown(app))
        assert "Step 3:" in shown(app)
        assert max(map(len, shown(app).split("\n"))) <= 120


async def test_no_wrong_draft() -> None:
    made = record(kept=(4,))
    made.steps[1:] = []
    app = Host(made)
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_for(pilot, lambda: "Step 1:" in shown(app))
        await pilot.press("r")
        await wait_for(pilot, lambda: "No draft was wrong" in shown(app))


def test_pieces_and_words() -> None:
    assert visible(Segment(" a\tb\n", "kept", (1,), 1, 1)) == "␣a→b↵"
    assert visible(Segment("好", "kept", (1, 2, 3), 1, 1)) == "好*"
    made = record(kept=(4, 1))
    assert {step: len(pieces) for step, pieces in pieces_by_step(made).items()} == {s.index: s.emitted for s in made.steps if s.emitted}
    tree = replace(made.steps[0], nodes=30, note="from the tree", bridge_s=0.001)
    text = explain(tree, [Segment("好", "kept", (1, 2), 1, 1)]).plain
    for part in ("a tree of 30 nodes, 4 deep", "from the tree", "bridge 1.0 ms", "several tokens"):
        assert part in text
    assert "The reply ended inside the draft" in explain(replace(made.steps[0], emitted=4), []).plain
    assert "wait for the rest of a character" in explain(made.steps[0], []).plain


def test_the_table_holds_every_step_and_text() -> None:
    made = record("a\tb \\ c\n\nd", kept=(2, 0))
    rows = table(made).splitlines()
    assert len(rows) == len(made.steps) + 1
    texts = [row.split("\t")[-1] for row in rows[1:]]
    assert "".join(texts).replace("\\t", "\t").replace("\\n", "\n").replace("\\\\", "\\") == made.text
    assert [int(row.split("\t")[2]) for row in rows[1:]] == [step.accepted for step in made.steps]
