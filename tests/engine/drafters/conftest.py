"""Byte tables and maps of toy tokenizers are kept in a folder of the tests' own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def drafters_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafters")


@pytest.fixture(autouse=True)
def _home(drafters_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECCHAT_HOME", str(drafters_home))
