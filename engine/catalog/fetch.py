"""The child process of a hub download; `engine.catalog.hub` starts it and talks to it. Not for import.

Why a process: specchat runs with the hub set offline (DESIGN 10), which huggingface_hub fixes when it is imported. A child with
that variable removed is online without touching the parent, and stopping is one kill, even inside a stuck read.

Why not plain `hf_hub_download` for the weights: since 2.x it drops a half-fetched file when it is interrupted. Here large files are
fetched into `blobs/<sha256>.incomplete`, go on where they stopped, and are checked against their SHA-256; then huggingface_hub
links them into the snapshot, so that the cache is an ordinary one.

In: a line with the request, then a line that says go; end of input means that the parent is gone, so stop. Out: JSON lines:
{"plan"}, {"done", "file", "note"}*, {"path"} or {"error"}.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from engine.catalog.needed import BIN_INDEX, INDEX, choose, shards
from engine.catalog.progress import CHECKING, RETRYING
from engine.errors import EngineError

TRIES = 5  # without a new byte
BLOCK = 1 << 15  # on a slow line, too, one comes every few seconds
ANSWER_S = float(os.environ.get("SPECCHAT_ANSWER_S", "10"))  # a slow line may need more
READ_S = 30
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


def main() -> None:
    """Fetch what the request on stdin names."""
    request = json.loads(sys.stdin.readline())
    try:
        Fetch(request["repo"], request["kind"], request["file"]).run()
    except Exception as error:
        found = error if isinstance(error, EngineError) else explain(error, request["repo"])
        say(error=[found.message, found.hint, found.kind, found.detail])
        sys.exit(1)


def say(**message: object) -> None:
    print(json.dumps(message), flush=True)


class Fetch:
    """One repository: plan, then fetch, then link."""

    def __init__(self, repo: str, kind: str, file: str | None) -> None:
        from huggingface_hub import HfApi, constants
        from huggingface_hub.file_download import repo_folder_name

        self.repo, self.kind, self.file = repo, kind, file
        self.folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model")
        info = HfApi().model_info(repo, files_metadata=True, timeout=ANSWER_S)
        self.files = {s.rfilename: s for s in info.siblings or []}
        self.commit = info.sha
        self.done = 0
        self._said_s = 0.0

    def run(self) -> None:
        from huggingface_hub import hf_hub_download

        names = choose(list(self.files), self.repo, self.kind, self.file)
        for index in names[:]:
            if index in (INDEX, BIN_INDEX):
                names += shards(Path(hf_hub_download(self.repo, index, etag_timeout=ANSWER_S)).parent)
        names.sort(key=lambda name: self.size(name))  # the small ones first: a closed door shows before gigabytes
        here = sum(self.have(name) for name in names)
        total = sum(self.size(name) for name in names)
        say(plan={"total": total, "need": total - here, "folder": str(self.folder)})
        if not sys.stdin.readline():
            sys.exit(1)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        path = ""
        for name in names:
            before = self.done
            self.tell(name)
            if self.files[name].lfs and not self.linked(name).exists():
                self.blob(name)
            path = hf_hub_download(self.repo, name, etag_timeout=ANSWER_S)
            self.unshadow(name, Path(path))
            self.done = before + self.size(name)
            self.tell(name, force=True)
        say(path=path if self.file else str(Path(path).parent))

    def size(self, name: str) -> int:
        if name not in self.files:
            raise EngineError(
                f"The repository {self.repo} lacks {name}, which its weight index names.",
                "It is broken on the hub; choose another model.",
                kind="missing_weights",
            )
        return self.files[name].size or 0

    def linked(self, name: str) -> Path:
        return self.folder / "snapshots" / str(self.commit) / name

    def blob_path(self, name: str) -> Path:
        lfs = self.files[name].lfs
        return self.folder / "blobs" / (lfs["sha256"] if lfs else self.files[name].blob_id or "unknown")

    def have(self, name: str) -> int:
        """Bytes of a file that need not be fetched again."""
        blob = self.blob_path(name)
        for path in (self.linked(name), blob, blob.with_name(blob.name + ".incomplete")):
            if path.exists():
                return min(path.stat().st_size, self.size(name))
        return 0

    def unshadow(self, name: str, pointer: Path) -> None:
        """Where links are not supported the library copies the blob: do not keep a large file twice."""
        blob = self.blob_path(name)
        if self.files[name].lfs and not pointer.is_symlink() and pointer.exists() and blob.exists():
            blob.unlink()

    def tell(self, name: str, extra: int = 0, note: str = "", force: bool = False) -> None:
        now = time.monotonic()
        if force or note or now - self._said_s > 0.1:
            self._said_s = now
            say(done=self.done + extra, file=name, note=note)

    def blob(self, name: str) -> None:
        """Fetch a large file, from where an earlier try stopped, and check it."""
        blob, size = self.blob_path(name), self.size(name)
        if blob.exists() and blob.stat().st_size == size:
            return
        blob.parent.mkdir(parents=True, exist_ok=True)
        partial = blob.with_name(blob.name + ".incomplete")
        tries = 0
        while (have := partial.stat().st_size if partial.exists() else 0) != size:
            try:
                self.stream(name, partial, have, size)
            except _transport_errors() as error:
                before, have = have, partial.stat().st_size if partial.exists() else 0
                tries = 0 if have > before else tries + 1
                if tries >= TRIES:
                    raise EngineError(
                        f"The connection broke again and again while {name} of {self.repo} was fetched.",
                        "What was fetched is kept; pull again when the network is better.",
                        kind="network",
                        detail=repr(error),
                    ) from error
                self.tell(name, have, f"{RETRYING}: the connection broke" + (f", try {tries + 1} of {TRIES}" if tries else ""))
                time.sleep(min(tries, 3) * 0.5)
        self.tell(name, size, CHECKING)
        with partial.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != blob.name:
            partial.unlink()
            raise EngineError(
                f"The file {name} of {self.repo} has the wrong checksum, so it was deleted.",
                "Pull again; if it happens twice, something between here and the hub changes what it sends.",
                kind="checksum",
                detail=f"expected {blob.name}, found {found}",
            )
        partial.replace(blob)

    def stream(self, name: str, partial: Path, have: int, size: int) -> None:
        """Append to the partial file. A transport error leaves what came."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        if have > size:
            partial.unlink()
            have = 0
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        url = hf_hub_url(self.repo, name, revision=self.commit)
        with get_session().stream("GET", url, headers=headers, timeout=READ_S) as answer:
            hf_raise_for_status(answer)
            if answer.status_code != 206:
                have = 0  # the server does not know ranges: from the beginning
            with partial.open("r+b" if have else "wb") as file:
                file.seek(have)
                for block in answer.iter_bytes(BLOCK):
                    file.write(block)
                    self.tell(name, file.tell())
        got = partial.stat().st_size
        if got != size:
            partial.unlink()
            raise EngineError(
                f"The file {name} of {self.repo} came with {got} bytes instead of {size}, so it was deleted.",
                "Pull again; if it happens twice, the hub or a proxy in between serves a damaged file.",
                kind="corrupt_weights",
            )


def _transport_errors() -> tuple[type[Exception], ...]:
    """What the hub's HTTP client raises when a connection fails; its package changed its name between hub versions."""
    from huggingface_hub.utils import get_session

    client: Any = importlib.import_module(type(get_session()).__module__.partition(".")[0])
    return (client.TransportError,)


def explain(error: Exception, repo: str) -> EngineError:
    """A library's exception as one sentence and a hint."""
    from huggingface_hub import errors

    page = f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co').rstrip('/')}/{repo}"
    status = getattr(getattr(error, "response", None), "status_code", 0)
    detail = f"{type(error).__name__}: {error}"[:2000]
    if isinstance(error, errors.GatedRepoError):
        return EngineError(
            f"{repo} asks you to accept its licence first.",
            f"Accept it on {page}, log in with `hf auth login`, and pull again.",
            kind="gated",
            detail=detail,
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return EngineError(
            f"The hub has no model {repo}, or it is private.",
            "Check the name; for a private model log in with `hf auth login`.",
            kind="unknown_name",
            detail=detail,
        )
    if status in (401, 403):
        return EngineError(
            f"The hub refused access to {repo}.",
            "Your access token may be wrong or too old: log in again with `hf auth login`, or unset HF_TOKEN.",
            kind="gated",
            detail=detail,
        )
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return EngineError(f"A file of {repo} is not on the hub any more.", "Pull again.", kind="missing_weights", detail=detail)
    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        return explain(error.__cause__, repo)
    if status:
        return EngineError(
            f"The hub answered with error {status} for {repo}.", "Try again in a few minutes.", kind="network", detail=detail
        )
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return EngineError(
            f"The disk ran full while {repo} was fetched.",
            "Free some space and pull again: what was fetched is kept.",
            kind="disk_full",
            detail=detail,
        )
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        return EngineError(
            f"The hub cache cannot be written ({error.filename or error}).",
            "Make it writable, or set HF_HOME to a folder of your own.",
            kind="unwritable",
            detail=detail,
        )
    return EngineError(
        f"The hub could not be reached or understood, so {repo} was not fetched.",
        "Check the network connection and proxy settings, then pull again.",
        kind="network",
        detail=detail,
    )


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
