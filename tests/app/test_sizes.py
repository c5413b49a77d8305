"""What a download takes: both sizes where a model comes from the hub or else from a package index; and tables as wide as the window."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from app.picks import drafters, targets
from app.screens.picker_text import drafter_cells, headings, target_cells
from app.screens.pull import PullScreen
from app.sizes import by_source, short, words
from app.trial import Trial
from engine.catalog.catalog import Catalog, Defaults, Offer, builtin
from engine.catalog.specs import Mirror, ModelSpec
from engine.protocol import LoadOptions
from tests.app.tui_world import ChatOptions, Machine, World, wait_for

WHEELS = Mirror(("a==1",), ("*.bin",), "a.gguf", 1_117_000_000, "00")
BOTH = ModelSpec("both", repo="org/both", mirror=WHEELS, size=3_100_000_000)
HUB = ModelSpec("hub", repo="org/hub", size=98_000_000)
INDEX = ModelSpec("index", mirror=WHEELS, size=3_100_000_000)
UNKNOWN = ModelSpec("unknown", repo="org/unknown")


def test_sizes_in_words() -> None:
    assert [short(spec) for spec in (BOTH, HUB, INDEX, UNKNOWN)] == ["1.1–3.1 GB", "98 MB", "1.1 GB", "?"]
    assert short(BOTH, HUB) == "1.2–3.2 GB"
    assert short(BOTH, UNKNOWN) == words([]) == "?"
    assert words([253_000_000, 1_100_000_000]) == "253 MB–1.1 GB"
    assert by_source(BOTH) == "3.1 GB from the hub, or 1.1 GB from the package index where the hub cannot be reached"
    assert [by_source(spec) for spec in (HUB, INDEX, UNKNOWN)] == ["98 MB", "1.1 GB", ""]


class Stocked(Machine):
    """Nothing of a catalog is on this machine, or all of it."""

    def __init__(self, known: Catalog, *, full: bool) -> None:
        super().__init__(on_disk=(*known.targets, *known.drafters) if full else ())
        self.known = known

    def catalog(self) -> Catalog:
        return self.known


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_no_column_of_the_lists_is_cut(width: int, full: bool) -> None:
    """With every model that comes along, and a trial of each: all columns with their spaces and the scroll bar fit the window."""
    known = builtin()
    machine = Stocked(known, full=full)
    trial = Trial("x", 123.4, 4.25, 0.5, 2.2, 32)
    for target in known.targets.values():
        picks = drafters(known, machine, LoadOptions(), target, None).picks
        rows = [headings(width, drafters=True), *(drafter_cells(pick, width, trial if full else None) for pick in picks)]
        assert sum(max(cell_len(row[n]) for row in rows) + 2 for n in range(len(rows[0]))) < width
    rows = [headings(width, drafters=False), *(target_cells(p, width) for p in targets(known, machine, LoadOptions(), None).picks)]
    assert sum(max(cell_len(row[n]) for row in rows) + 2 for n in range(len(rows[0]))) < width


async def test_the_first_start_says_what_comes_from_where() -> None:
    class Offering(Machine):
        def catalog(self) -> Catalog:
            return Catalog({"both": BOTH, "hub": HUB}, {}, Defaults(cpu=(Offer(("both", "hub")),)))

    world = World(machine=Offering(on_disk=()), options=ChatOptions(target=None))
    async with world.app.run_test(size=(80, 24)) as pilot:
        await wait_for(pilot, lambda: isinstance(world.app.screen, PullScreen) and "1.1–3.1 GB" in world.shown())
        await wait_for(pilot, lambda: "3.1 GB from the hub, or 1.1 GB from the package index" in world.shown())
        await pilot.press("down")
        await wait_for(pilot, lambda: "from the package index" not in world.shown())
        assert "98 MB" in world.shown()
