"""What the command line opens the chat with: which saved chat, which model, and no search for garbage before the first frame."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from app import tui
from app.chat import ChatOptions
from app.cli import invoke
from app.state import State, save_state
from engine.catalog import hardware
from tests.app.tui_world import World, started


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> list[ChatOptions]:
    """What the chat was opened with."""
    found: list[ChatOptions] = []

    def run_chat(options: ChatOptions, *_: object, **__: object) -> int:
        found.append(options)
        return 0

    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    monkeypatch.setattr("app.console.is_terminal", lambda stream: True)
    monkeypatch.setattr(tui, "run_chat", run_chat)
    return found


@pytest.mark.parametrize(
    ("arguments", "resume"),
    [([], None), (["--continue"], ""), (["--chat", "12"], "12"), (["--chat", "about rivers"], "about rivers"), (["--chat", ""], "")],
)
def test_which_chat(opened: list[ChatOptions], arguments: list[str], resume: str | None) -> None:
    assert invoke(arguments) == 0
    assert [options.resume for options in opened] == [resume]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--continue", "--chat", "1"], "not both"),
        (["--continue", "run", "x"], "no meaning with a command"),
        (["--chat"], "requires an argument"),
    ],
)
def test_wrong_usage(opened: list[ChatOptions], arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(arguments) == 2
    assert words in capsys.readouterr().err
    assert opened == []


def test_a_start_with_the_last_model_does_not_look_at_the_machine(
    opened: list[ChatOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "probe", lambda: pytest.fail("looked"))
    own = tmp_path / "own.gguf"
    own.touch()
    save_state(State(str(own)))
    assert invoke([]) == 0
    assert [options.target.path for options in opened if options.target is not None] == [own]


@pytest.mark.parametrize("arguments", [[], ["--demo"]])
def test_no_garbage_is_looked_for_until_the_first_frame(
    opened: list[ChatOptions], arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[bool] = []
    monkeypatch.setattr(tui, "run_chat", lambda *_: looked.append(gc.isenabled()))
    assert invoke(arguments) == 0
    assert looked == [False]
    assert gc.isenabled()


async def test_garbage_is_looked_for_from_the_first_frame_on() -> None:
    world = World()
    gc.disable()
    try:
        async with world.app.run_test() as pilot:
            await started(world, pilot)
            assert gc.isenabled()
            assert gc.get_freeze_count() > 10_000
    finally:
        gc.enable()
        gc.unfreeze()
