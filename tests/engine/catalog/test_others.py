"""Which other programs hold memory: sums by name, without ourselves, and nothing where the system does not tell."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from engine.catalog import others

GB = 10**9


def process(pid: int, name: str | None, rss: int, shared: int = 0) -> Any:
    memory = SimpleNamespace(rss=rss, shared=shared) if rss else None
    return SimpleNamespace(info={"pid": pid, "name": name, "memory_info": memory})


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    seen: list[Any] = []
    monkeypatch.setattr(psutil, "process_iter", lambda attrs: iter(seen))
    return seen


def test_programs_of_one_name_count_together_and_we_do_not(crowd: list[Any]) -> None:
    crowd += [
        process(1, "firefox", 2 * GB, GB // 2),
        process(2, "firefox", GB),
        process(3, "code", 3 * GB),
        process(os.getpid(), "specchat", 9 * GB),
        process(5, "small", 10_000_000),
        process(6, "hidden", 0),
    ]
    assert others.others("cpu") == [("code", 3 * GB), ("firefox", 5 * GB // 2)]
    assert others.sentence("cpu") == "Other programs hold memory: code 3.0 GB, firefox 2.5 GB."


def test_our_children_do_not_count() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert {os.getpid(), child.pid} <= others._ours()
    finally:
        child.kill()
        child.wait()


def test_three_names_at_most_each_short_and_harmless(crowd: list[Any]) -> None:
    crowd += [process(10 + n, f"\x1b]0;evil{n}\x07{'x' * 50}", GB) for n in range(5)]
    found = others.others("cpu")
    assert len(found) == 3
    assert all(len(name) == others.NAME and name.isprintable() for name, _ in found)


def test_nobody_else(crowd: list[Any]) -> None:
    assert others.sentence("cpu") == ""


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(attrs: list[str]) -> Iterator[Any]:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "process_iter", refused)
    assert others.others("cpu") == []
    monkeypatch.setenv("PATH", "")
    assert others.others("cuda:0") == []  # no nvidia-smi


def test_lines_of_a_card() -> None:
    text = "123, C:\\Games\\doom.exe, 2048\n77, /usr/bin/python3, with comma, 512\n9, [Insufficient Permissions], [N/A]\n\nnonsense\n"
    assert others.parse_smi(text) == [(123, "doom.exe", 2048 << 20), (77, "python3, with comma", 512 << 20)]


def test_this_machine_answers() -> None:
    assert isinstance(others.others("cpu"), list)
