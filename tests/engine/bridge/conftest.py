"""Byte tables and maps are kept in a folder of the tests' own, shared by all of them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shelf_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bridge")


@pytest.fixture(autouse=True)
def _home(shelf_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECCHAT_HOME", str(shelf_home))
