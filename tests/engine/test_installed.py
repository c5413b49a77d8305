"""What torch can do here, asked in a child: one that fails is a finding, and one test asks the real child."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from engine.installed import Device, Installed, ask, look


def test_a_child_that_hangs_or_crashes_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("python", 1)

    monkeypatch.setattr(subprocess, "run", hang)
    assert "longer than" in ask().errors[0]
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, -11, "", "segfault"))
    assert ask().torch is None
    assert "crashed" in ask().errors[0]


def test_what_a_child_writes_is_read_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Installed(
        "2.13.0", "13.0", cuda=True, devices=(Device("RTX 4070", 12 << 30, "8.9"),), errors=("bitsandbytes cannot be imported",)
    )
    written = f"a library says something\n{json.dumps(asdict(found))}\n"
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 0, written, ""))
    assert ask() == found


def test_libraries_that_cannot_be_imported_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    found = look()
    assert found.torch
    assert not found.bitsandbytes
    assert "bitsandbytes cannot be imported: ModuleNotFoundError" in found.errors[0]
    monkeypatch.setitem(sys.modules, "torch", None)
    assert look().torch is None
    assert "torch cannot be imported: ModuleNotFoundError" in look().errors[0]


def test_the_real_child_finds_torch() -> None:
    found = ask()
    assert found.torch, found
    assert found.bitsandbytes
    assert found.errors == ()
