"""`specchat doctor`: this machine, the versions, what is possible here, what to install, and the places that are used.

What only torch knows comes from a short child process, so this process stays without it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.console import emit, emit_json
from app.report import versions
from engine import places
from engine.catalog import hardware
from engine.catalog.hardware import Hardware
from engine.catalog.progress import human
from engine.catalog.stored import hub_cache
from engine.errors import EngineError
from engine.words import counted

CHILD_S = 120.0
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
CHILD = """
import json, os
os.environ["HF_HUB_OFFLINE"] = "1"
found = {"torch": None, "cuda_build": None, "cuda": False, "cuda_error": "", "mps": False, "devices": []}
found |= {"bitsandbytes": False, "kernels": None, "errors": []}
try:
    import torch
    found["torch"], found["cuda_build"] = torch.__version__, torch.version.cuda
    found["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
    found["threads"] = torch.get_num_threads()
    found["mps"] = torch.backends.mps.is_available()
    try:
        if torch.version.cuda:
            torch.cuda.init()
    except Exception as error:
        found["cuda_error"] = str(error).splitlines()[0]
    found["cuda"] = torch.cuda.is_available()
    for i in range(torch.cuda.device_count() if found["cuda"] else 0):
        p = torch.cuda.get_device_properties(i)
        found["devices"].append({"name": p.name, "memory": p.total_memory, "capability": f"{p.major}.{p.minor}"})
except Exception as error:
    found["errors"].append(f"torch cannot be imported: {type(error).__name__}: {error}")
else:
    try:
        import bitsandbytes
        found["bitsandbytes"] = True
    except Exception as error:
        found["errors"].append(f"bitsandbytes cannot be imported: {type(error).__name__}: {error}")
    try:
        from engine.kernels.machine import machine
        found["kernels"] = machine().isa.name if machine() else None
    except Exception as error:
        found["errors"].append(f"the kernels for this CPU cannot be made: {type(error).__name__}: {error}")
print(json.dumps(found))
"""


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
    torch_facts = ask_child()
    return {
        "hardware": asdict(machine),
        "versions": versions(),
        "torch": torch_facts,
        "possible": possible(torch_facts),
        "install": install(machine, torch_facts),
        "places": [place(*named) for named in _places()],
    }


def ask_child() -> dict[str, Any]:
    """Let a child import torch and bitsandbytes; its findings, or why there are none."""
    empty: dict[str, Any] = {
        "torch": None,
        "cuda_build": None,
        "cuda": False,
        "cuda_error": "",
        "mps": False,
        "devices": [],
        "bitsandbytes": False,
        "kernels": None,
    }
    try:
        child = subprocess.run(
            [sys.executable, "-c", CHILD], capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=CHILD_S, check=False
        )
        return dict(json.loads(child.stdout.strip().splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return empty | {"errors": [f"importing torch took longer than {CHILD_S:.0f} s"]}
    except (OSError, ValueError, IndexError):
        return empty | {"errors": ["the process that imports torch crashed"]}


def possible(facts: dict[str, Any]) -> dict[str, bool]:
    """What this machine can do with what is installed. `nf4` means 4-bit weights at useful speed."""
    ok = facts["torch"] is not None
    return {
        "cpu": ok,
        "cuda": bool(facts["cuda"]),
        "mps": bool(facts["mps"]),
        "nf4": ok and (bool(facts["bitsandbytes"]) if facts["cuda"] else bool(facts["kernels"]) and not facts["mps"]),
        "bf16": ok,
        "int8": ok,
    }


def install(machine: Hardware, facts: dict[str, Any]) -> list[dict[str, str]]:
    """What to change, each as a reason and a command; empty when nothing is missing."""
    advice = []
    nvidia = machine.device == "cuda"
    if facts["torch"] is None:
        advice.append((f"{'; '.join(facts['errors'])}.", REINSTALL))
    elif nvidia and not facts["cuda_build"]:
        advice.append(
            (
                f"There is an NVIDIA card ({machine.gpus[0].name}), but this torch is built for the CPU only. "
                "For cards before Turing, or drivers before 580, write cu126 instead of cu130.",
                CUDA_FIX,
            )
        )
    elif nvidia and not facts["cuda"]:
        reason = facts["cuda_error"] or "no reason given"
        driver = machine.gpus[0].driver or "unknown"
        advice.append(
            (
                f"torch for CUDA {facts['cuda_build']} cannot use the card ({reason}; driver {driver}): update the driver, "
                "or install a torch for an older CUDA.",
                CUDA_FIX.replace("cu130", "cu126"),
            )
        )
    if facts["torch"] is not None and not facts["bitsandbytes"]:
        advice.append((f"{'; '.join(facts['errors']) or 'bitsandbytes is missing'}: 4-bit weights are not possible.", BNB_FIX))
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
