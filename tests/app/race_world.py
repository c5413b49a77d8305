"""What the tests of comparison, benchmark and demo share: a recording of some prompts with three drafters, and an application on it."""

from __future__ import annotations

from dataclasses import replace

from textual.pilot import Pilot

from app.bench import WARM_UP_PROMPT
from app.prompts import read
from engine.trace import READY, Take, Timed, Trace, scripted
from tests.app.tui_world import World, started, stuck, wait_for

WHY = "Why is the sky blue?"
TEXT = "The sky is blue since small parts of the air scatter blue light more than red light, in all directions, all day long."
OTHER = "The sky is blue since small"  # ends early
KEPT = {"none": (0, (0,), 0.03), "ngram": (2, (2, 0, 1), 0.03), "small": (4, (4, 2, 3), 0.04)}


def take(prompt: str, drafter: str, text: str = TEXT, step_s: float | None = None, stuck_after: int | None = None) -> Take:
    """One recording; the look-up drafts two tokens, the small model four. `stuck_after` so many steps it lasts until it is stopped."""
    depth, kept, pace_s = KEPT[drafter]
    timed = scripted(text, depth=depth, kept=kept, step_s=step_s or pace_s, prefill_s=0.05)
    return Take(prompt, drafter, timed if stuck_after is None else stuck(timed, stuck_after))


def ready(drafter: str) -> tuple[Timed, ...]:
    method = "model" if drafter == "small" else drafter
    return ((0.0, replace(READY, drafter=drafter, method=method)),)


def race_trace(*extra: Take) -> Trace:
    """The question above, the warm-up and the prompts of the mixed set; `extra` goes before them."""
    prompts = (WHY, *(prompt.text for prompt in read("mixed")), WARM_UP_PROMPT)
    takes = [take(prompt, drafter) for drafter in KEPT for prompt in prompts]
    swaps = [Take("", drafter, ready(drafter)) for drafter in KEPT]
    return Trace(load=ready("ngram"), takes=(*extra, *swaps, *takes))


def race_world(*extra: Take, speed: float | None = None) -> World:
    """A chat with a loaded target."""
    return World(trace=race_trace(*extra), speed=speed)


async def opened(world: World, pilot: Pilot[int], key: str) -> None:
    """Start, and go to the comparison (f5) or the benchmark (f6)."""
    await started(world, pilot)
    await pilot.press(key)
    await wait_for(pilot, lambda: world.app.screen is not world.screen)


async def opened_by(world: World, pilot: Pilot[int], command: str) -> None:
    """The same by a slash command."""
    await started(world, pilot)
    world.screen.prompt.put(command)
    await pilot.press("enter")
    await wait_for(pilot, lambda: world.app.screen is not world.screen)


async def ran(world: World, pilot: Pilot[int]) -> None:
    """The measurement has ended and its end is drawn."""
    screen = world.app.screen
    await wait_for(pilot, lambda: screen.runner is not None and not screen.running)  # type: ignore[attr-defined]
    await wait_for(pilot, lambda: not screen._timer._active.is_set())  # type: ignore[attr-defined]
    await pilot.pause()
