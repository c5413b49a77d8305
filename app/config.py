"""The person's config.toml: read with its mistakes told, written line by line so that comments and order stay.

A broken file is never overwritten: the defaults count, and the screen says which line is wrong. One mistaken line costs only itself.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.commands import BY_NAME
from app.options import Options
from app.settings import BY_PATH, SETTINGS, TABLES, Value
from engine.catalog.tables import line_of
from engine.errors import EngineError
from engine.places import config_dir

FILE = "config.toml"
KEYS = "keys"


@dataclass(frozen=True, slots=True)
class Config:
    """What is kept. `values` by "table.name", `keys` by command; `notes` are sentences about what could not be taken."""

    values: Mapping[str, Value] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def get(self, path: str) -> Value | None:
        """The kept value, None where the default counts."""
        return self.values.get(path)

    def over(self, options: Options, *, chat: bool = True) -> Options:
        """The command line's options with what is kept where they say nothing; without that of `chat` for a saved chat."""
        defaults = Options()
        kept: dict[str, Any] = {}
        for setting in SETTINGS:
            value = self.values.get(setting.path)
            wanted = setting.table == "model" or (chat and setting.table == "chat")
            if wanted and value is not None and getattr(options, setting.name) == getattr(defaults, setting.name):
                kept[setting.name] = value
        return replace(options, **kept)


def load_config(file: Path | None = None) -> Config:
    """Read it; never raises."""
    try:
        file = file or config_dir() / FILE
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Config()
    except EngineError as error:
        return Config(notes=(str(error),))
    except (OSError, UnicodeDecodeError) as error:
        return Config(notes=(f"{file} cannot be read: {error}. The defaults count.",))
    try:
        whole = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return Config(notes=(f"{file}: {error}. The defaults count until that is mended.",))
    return _checked(whole, text.splitlines(), file)


def _checked(whole: dict[str, Any], lines: list[str], file: Path) -> Config:
    values: dict[str, Value] = {}
    keys: dict[str, str] = {}
    notes: list[str] = []

    def wrong(table: str, name: str, problem: str, known: list[str]) -> None:
        near = difflib.get_close_matches(name or table, known, 1, 0.5)
        hint = f" Did you mean {near[0]}?" if near else ""
        line = line_of(lines, [table] if name else [], name or table)
        notes.append(f"{file}, line {line}: {f'{table}.{name}' if name else table} {problem}.{hint}")

    for table, entries in whole.items():
        if table not in (*TABLES, KEYS) or not isinstance(entries, dict):
            wrong(table, "", "is not known", [*TABLES, KEYS])
            continue
        for name, value in entries.items():
            if table == KEYS:
                if name not in BY_NAME:
                    wrong(table, name, "is no command", list(BY_NAME))
                elif not isinstance(value, str) or not value:
                    wrong(table, name, 'must be keys in quotes, like "ctrl+y"', [])
                else:
                    keys[name] = value
                continue
            setting = BY_PATH.get(f"{table}.{name}")
            if setting is None:
                wrong(table, name, "is not known", [s.name for s in SETTINGS if s.table == table])
            elif problem := setting.problem(value):
                wrong(table, name, problem, [])
            else:
                values[setting.path] = value
    return Config(values, keys, tuple(notes))


def save(path: str, value: Value | None, file: Path | None = None) -> None:
    """Keep one value, or None for the default. EngineError when the file is broken or cannot be written; it stays as it was then."""
    try:
        file = file or config_dir() / FILE
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        wanted = tomllib.loads(before)
    except tomllib.TOMLDecodeError as error:
        raise EngineError(f"{file} is broken, so nothing is written into it: {error}.", "Mend it by hand.", kind="config") from None
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"{file} cannot be read: {error}.", "Check its permissions.", kind="unwritable") from None
    table, _, name = path.partition(".")
    entries = wanted.setdefault(table, {})
    if value is None:
        entries.pop(name, None)
        if not entries and f"[{table}]" not in before:
            del wanted[table]
    else:
        entries[name] = value
    after = edited(before, table, name, value)
    try:
        right = tomllib.loads(after) == wanted
    except tomllib.TOMLDecodeError:
        right = False
    if not right:
        raise EngineError(f"{path} cannot be changed in {file}, as it is written there.", "Change it by hand.", kind="config")
    _write(file, after)


def edited(text: str, table: str, name: str, value: Value | None) -> str:
    """The file with one line changed, added or taken out."""
    lines = text.splitlines(keepends=True)
    line = "" if value is None else f"{name} = {_toml(value)}\n"
    inside, end = False, None
    for number, old in enumerate(lines):
        if header := re.match(r"\s*\[([^\[\]]+)\]\s*(#.*)?$", old):
            inside = header[1].strip() == table
        if not inside:
            continue
        if found := re.match(rf"\s*{re.escape(name)}\s*=\s*([^#]*?)(\s*#.*)?\n?$", old):
            comment = found[2] or ""
            lines[number] = line.rstrip("\n") + comment.rstrip("\n") + "\n" if line else ""
            return "".join(lines)
        if old.strip():
            end = number + 1
    if not line:
        return text
    if end is None:
        lines += ["\n"] if text.strip() else []
        lines += [f"[{table}]\n", line]
    else:
        if not lines[end - 1].endswith("\n"):
            lines[end - 1] += "\n"
        lines.insert(end, line)
    return "".join(lines)


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _write(file: Path, text: str) -> None:
    """Whole or not at all, readable by its owner only."""
    try:
        handle, name = tempfile.mkstemp(prefix="config-", suffix=".tmp", dir=file.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as opened:
                opened.write(text)
            Path(name).replace(file)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise EngineError(f"{file} cannot be written: {error.strerror or error}.", "Check the folder.", kind="unwritable") from None
