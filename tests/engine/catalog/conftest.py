"""Every test has its own specchat home and hub cache; the hub is offline, as in the running program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.catalog.fakes import SMALL, WEIGHTS, FakeHub


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "HF_TOKEN",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with one small model, org/tiny."""
    fake = FakeHub({**SMALL, "model.safetensors": WEIGHTS, "original/consolidated.safetensors": b"x" * 99, "pytorch_model.bin": b"x"})
    monkeypatch.setenv("HF_ENDPOINT", fake.url)
    yield fake
    fake.close()


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens at the hub's address."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
