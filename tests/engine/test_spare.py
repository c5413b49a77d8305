"""Memory that can be taken: what the machine has, and not more than the groups of this process may."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import pytest

from engine import spare

MB = 1 << 20


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(spare, "GROUPS", tmp_path)
    monkeypatch.setattr(spare, "OWN", tmp_path / "own")
    monkeypatch.setattr(spare.psutil, "virtual_memory", lambda: namedtuple("memory", "available")(8000 * MB))
    return tmp_path


def limit(folder: Path, version: int, most: str, used: int, files: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    before = "" if version == 2 else "total_"
    (folder / names[0]).write_text(f"{most}\n")
    (folder / names[1]).write_text(f"{used * MB}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{before}active_file {files * MB}\n{before}inactive_file {2 * files * MB}\n")


def test_without_limits_it_is_what_the_machine_has(groups: Path) -> None:
    assert spare.available() == 8000 * MB
    limit(groups, 2, "max", 900, 100)
    assert spare.available() == 8000 * MB


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_has_less(groups: Path, version: int) -> None:
    limit(groups if version == 2 else groups / "memory", version, str(2000 * MB), 900, 100)
    assert spare.available() == (2000 - 900 + 300) * MB


@pytest.mark.parametrize("line", ["0::/user/shell", "4:memory:/user/shell", "4:cpu,memory:/user/shell"])
def test_the_narrowest_of_the_groups_around_counts(groups: Path, line: str) -> None:
    (groups / "own").write_text(f"7:blkio:/other\n{line}\n")
    version = 2 if line.startswith("0") else 1
    root = groups if version == 2 else groups / "memory"
    limit(root / "user", version, str(1000 * MB), 400, 0)
    limit(root / "user" / "shell", version, str(3000 * MB), 400, 0)
    limit(groups / "other", version, "0", 0, 0)
    assert spare.available() == 600 * MB
    limit(root / "user", version, str(100 * MB), 400, 0)  # over its limit
    assert spare.available() == 0


def test_the_real_machine() -> None:
    assert 0 < spare.available() <= spare.psutil.virtual_memory().total
