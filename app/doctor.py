"""`specchat doctor`: this machine, the versions, what is possible here, what to install, and the places that are used.

What only torch knows comes from `engine.installed`, so this process stays without it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.console import emit, emit_json
from app.report import versions
from engine import installed, places
from engine.catalog import hardware
from engine.catalog.hardware import Hardware
from engine.catalog.progress import human
from engine.catalog.stored import hub_cache
from engine.errors import EngineError
from engine.installed import Installed
from engine.words import counted

CUDA_INDEX = "https://download.pytorch.org/whl/cu130"
CUDA_FIX = f'pip uninstall -y torch && pip install "torch>=2.10,<2.14" --index-url {CUDA_INDEX}'
BNB_FIX = 'pip install --upgrade "bitsandbytes>=0.50.2"'
REINSTALL = 'pip install --force-reinstall "torch>=2.10,<2.14"'
CAN = {
    "cuda": "NVIDIA graphics card (CUDA)",
    "mps": "Apple graphics (MPS)",
    "cpu": "CPU",
    "nf4": "4-bit weights (nf4) at full speed; without, bf16 is used",
    "int8": "8-bit weights",
    "bf16": "16-bit weights",
}


def show(*, as_json: bool = False) -> int:
    """Print what was found. Advice is no failure: the exit code is 0."""
    facts = examine()
    if as_json:
        emit_json(facts)
    else:
        emit(words(facts))
    return 0


def examine() -> dict[str, Any]:
    """All facts, with the keys of `doctor --json`."""
    machine = hardware.probe()
    found = installed.ask()
    return {
        "hardware": asdict(machine),
        "versions": versions(),
        "torch": asdict(found),
        "possible": possible(found),
        "install": install(machine, found),
        "places": [place(*named) for named in _places()],
    }


def possible(found: Installed) -> dict[str, bool]:
    """What this machine can do with what is installed. `nf4` means 4-bit weights at useful speed."""
    ok = found.torch is not None
    return {
        "cpu": ok,
        "cuda": found.cuda,
        "mps": found.mps,
        "nf4": ok and (found.bitsandbytes if found.cuda else bool(found.kernels) and not found.mps),
        "bf16": ok,
        "int8": ok,
    }


def install(machine: Hardware, found: Installed) -> list[dict[str, str]]:
    """What to change, each as a reason and a command; empty when nothing is missing."""
    advice = []
    nvidia = machine.device == "cuda"
    if found.torch is None:
        advice.append((f"{'; '.join(found.errors)}.", REINSTALL))
    elif nvidia and not found.cuda_build:
        advice.append(
            (
                f"There is an NVIDIA card ({machine.gpus[0].name}), but this torch is built for the CPU only. "
                "For cards before Turing, or drivers before 580, write cu126 instead of cu130.",
                CUDA_FIX,
            )
        )
    elif nvidia and not found.cuda:
        reason = found.cuda_error or "no reason given"
        driver = machine.gpus[0].driver or "unknown"
        advice.append(
            (
                f"torch for CUDA {found.cuda_build} cannot use the card ({reason}; driver {driver}): update the driver, "
                "or install a torch for an older CUDA.",
                CUDA_FIX.replace("cu130", "cu126"),
            )
        )
    if found.torch is not None and not found.bitsandbytes:
        advice.append((f"{'; '.join(found.errors) or 'bitsandbytes is missing'}: 4-bit weights are not possible.", BNB_FIX))
    return [{"reason": reason, "command": command} for reason, command in advice]


def _places() -> list[tuple[str, Callable[[], Path]]]:
    return [
        ("config", places.config_dir),
        ("data", places.data_dir),
        ("cache", places.cache_dir),
        ("logs", places.log_dir),
        ("hub cache", hub_cache),
    ]


def place(name: str, where: Callable[[], Path]) -> dict[str, Any]:
    """One folder: path, whether a file can be written there, free bytes."""
    problem = ""
    try:
        path = where()
    except EngineError as error:
        return {"name": name, "path": None, "writable": False, "free": None, "problem": error.message}
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        if existing == path:
            with tempfile.TemporaryFile(dir=path):
                pass
        elif not os.access(existing, os.W_OK):
            problem = "no permission"
    except OSError as error:
        problem = error.strerror or str(error)
    return {"name": name, "path": str(path), "writable": not problem, "free": shutil.disk_usage(existing).free, "problem": problem}


def words(facts: dict[str, Any]) -> str:
    """The same for people."""
    machine, torch_facts, can = facts["hardware"], facts["torch"], facts["possible"]
    lines = [
        "MACHINE",
        f"  {machine['os']}",
        f"  {machine['cpu']}, {counted(machine['cores'], 'core')}, {human(machine['ram'])} memory",
        f"  instructions: {' '.join(machine['flags']) or 'none that matter'}",
        *(f"  {gpu['name']}, {human(gpu['total'])}{', driver ' + gpu['driver'] if gpu['driver'] else ''}" for gpu in machine["gpus"]),
        *([] if machine["gpus"] else ["  no graphics card that can be used"]),
        "",
        "VERSIONS",
        *(f"  {name:16} {version or 'not installed'}" for name, version in facts["versions"].items()),
    ]
    if torch_facts["torch"]:
        lines.append(f"  {'CPU kernels':16} {torch_facts['kernels'] or 'none for this processor'}")
        lines.append(f"  {'torch is built for':16} {'CUDA ' + torch_facts['cuda_build'] if torch_facts['cuda_build'] else 'the CPU'}")
    lines += ["", "POSSIBLE", *(f"  {'yes' if can[key] else 'no ':4} {text}" for key, text in CAN.items()), "", "TO INSTALL"]
    for advice in facts["install"]:
        lines += [f"  {advice['reason']}", f"    {advice['command']}"]
    lines += [] if facts["install"] else ["  nothing: all that is needed is there"]
    lines += ["", "PLACES"]
    for spot in facts["places"]:
        state = f"{human(spot['free'])} free" if spot["writable"] else f"CANNOT BE WRITTEN: {spot['problem']}"
        lines.append(f"  {spot['name']:10} {spot['path'] or ''}  {state}".rstrip())
    return "\n".join(lines) + "\n"
