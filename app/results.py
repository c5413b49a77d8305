"""Saved reports: one folder each under the data folder, for the person's eyes only; listed, read again, deleted.

`2026-11-29-141205/` holds report.json, report.md, summary.csv, report.svg and, from a measurement, steps.csv.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from app.report import FORMAT, Report, as_csv
from app.report_svg import as_svg
from app.report_text import as_markdown
from engine.errors import EngineError
from engine.places import data_dir


@dataclass(frozen=True, slots=True)
class Entry:
    """One saved report, as the list shows it."""

    folder: Path
    report: Report

    @property
    def name(self) -> str:
        return self.folder.name


def files(report: Report, steps: str | None = None) -> dict[str, str]:
    """Names and contents of the files of a report."""
    made = {
        "report.json": as_json(report),
        "report.md": as_markdown(report),
        "summary.csv": as_csv(report),
        "report.svg": as_svg(report),
    }
    return made | ({"steps.csv": steps} if steps is not None else {})


def as_json(report: Report) -> str:
    """The report as a JSON document."""
    return json.dumps(report, ensure_ascii=False, indent=1) + "\n"


def folder() -> Path:
    """Where the reports are."""
    return data_dir() / "bench"


def save(report: Report, steps: str | None = None) -> Path:
    """Write a report into a new folder. Raises EngineError(kind="unwritable" or "disk_full")."""
    made = datetime.fromisoformat(report["made"]).strftime("%Y-%m-%d-%H%M%S")
    try:
        folder().mkdir(mode=0o700, exist_ok=True)
        for n in range(1, 1000):
            place = folder() / (made if n == 1 else f"{made}-{n}")
            try:
                place.mkdir(mode=0o700)
                break
            except FileExistsError:  # another one in the same second
                continue
        write(place, files(report, steps))
    except OSError as error:
        raise cannot_write(folder(), error) from error
    return place


def write(place: Path, contents: Mapping[str, str]) -> None:
    """Write files that only their owner can read."""
    for name, text in contents.items():
        handle = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)


def cannot_write(path: Path, error: OSError) -> EngineError:
    """The sentence for a file that could not be written."""
    kind = "disk_full" if error.errno == errno.ENOSPC else "unwritable"
    return EngineError(f"{path} cannot be written: {error.strerror or error}.", "Free some space, or choose another folder.", kind=kind)


def entries() -> list[Entry]:
    """All reports that can be read, the newest first."""
    found = []
    for place in sorted(folder().glob("*/report.json"), reverse=True):
        try:
            report = json.loads(place.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(report, dict) and report.get("format") == FORMAT and report.get("rows"):
            found.append(Entry(place.parent, report))
    return found


def delete(entry: Entry) -> None:
    """Remove a report for good."""
    shutil.rmtree(entry.folder, ignore_errors=True)
