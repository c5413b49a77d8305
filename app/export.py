"""A conversation as a file, and back: Markdown to read, JSON with everything, JSONL with one message a line. Exact text."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from app.chat import Chat
from app.saved import MessageRow, message_rows, settings
from app.tree import Attachment, Version, everything
from engine import places
from engine.errors import EngineError
from engine.protocol import Done, Sampling
from engine.trace import DONE

FORMATS = ("md", "json", "jsonl")
VERSION = 1
LARGEST = 256 * 1024  # bytes of an attached file
LARGEST_CHAT = 64 * 1024 * 1024


def as_text(chat: Chat, kind: str) -> str:
    """The file's text."""
    if kind == "md":
        return f"# {chat.name}\n\n{chat.markdown()}"
    if kind == "jsonl":
        return "".join(json.dumps(message, ensure_ascii=False) + "\n" for message in messages(chat))
    return json.dumps(as_object(chat), ensure_ascii=False, indent=1) + "\n"


def messages(chat: Chat) -> list[dict[str, str]]:
    """The conversation that is shown, as role and content."""
    found = [{"role": "system", "content": chat.system}] if chat.system else []
    for turn in chat.turns:
        found.append({"role": "user", "content": turn.content})
        if turn.answer is not None and turn.answer.text:
            found.append({"role": "assistant", "content": turn.answer.text})
    return found


def as_object(chat: Chat) -> dict[str, Any]:
    """Everything: all branches and versions, settings, seeds, and where each token came from."""
    segments = {version.key: version.segments for version in _versions(chat)}
    rows = []
    for row in message_rows(chat):
        rows.append(_row(row))
        if pieces := segments.get(row.key):
            rows[-1]["segments"] = [{"text": s.text, "origin": s.origin, "token_ids": list(s.token_ids), "step": s.step} for s in pieces]
    return {
        "specchat_chat": VERSION,
        "title": chat.name,
        "created": chat.created_s,
        "settings": settings(chat),
        "messages": messages(chat),
        "tree": rows,
    }


def _versions(chat: Chat) -> list[Version]:
    return [version for turn in everything(chat.root) for version in turn.replies]


def _row(row: MessageRow) -> dict[str, Any]:
    values = asdict(row)
    values.pop("trace")
    return values | {"extra": json.loads(row.extra)}


# --- files ----------------------------------------------------------------------------------------------------------


def file_name(chat: Chat, kind: str) -> str:
    """A name out of the title that every system takes."""
    words = re.sub(r"[^\w-]+", "-", chat.name, flags=re.ASCII).strip("-").lower()
    return f"{words[:50] or 'chat'}.{kind}"


def write(path: Path, text: str) -> Path:
    """Write a new file for the owner's eyes; one that is there is not overwritten, a number is put behind the name. Returns its path."""
    for n in range(1, 1000):
        free = path if n == 1 else path.with_name(f"{path.stem}-{n}{path.suffix}")
        try:
            handle = os.open(free, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        except (OSError, ValueError) as error:
            raise _trouble(error, free) from error
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="\n") as file:
                file.write(text)
        except OSError as error:
            free.unlink(missing_ok=True)
            raise _trouble(error, free) from error
        return free
    raise EngineError(f"There are too many files named like {path.name}.", "Give another name.", kind="unwritable")


def attach(name: str) -> Attachment:
    """Read a text file to send with a question. Raises EngineError for what is no text, or too large."""
    path = places.written(name)
    data = _read(path, LARGEST)
    for mark, encoding in ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"", "utf-8-sig")):
        if data.startswith(mark):
            try:
                text = data.decode(encoding)
            except UnicodeDecodeError:
                break
            if "\0" not in text:
                return Attachment(path.name, text.replace("\r\n", "\n"))
            break
    raise EngineError(f"{path.name} is no text file in UTF-8 or UTF-16.", "Only text can be attached.", kind="encoding")


def _read(path: Path, most: int) -> bytes:
    try:
        if not path.is_file():
            raise EngineError(f"There is no file {path}.", "Check the path.", kind="unknown_name")
        with path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        raise _trouble(error, path, "read") from error
    if len(data) > most:
        raise EngineError(f"{path.name} is larger than {most // 1024:,} KiB.", "Send a part of it.", kind="too_long")
    return data


def _trouble(error: Exception, path: Path, what: str = "written") -> EngineError:
    reason = getattr(error, "strerror", None) or str(error)
    return EngineError(f"{path} cannot be {what}: {reason}.", "Choose another place.", kind="unwritable")


def load(chat: Chat, name: str) -> None:
    """Fill an empty chat from an exported JSON or JSONL file. Branches that were not shown are in JSON only, and are left out."""
    path = places.written(name)
    try:
        text = _read(path, LARGEST_CHAT).decode("utf-8-sig")
        whole = json.loads(text) if text.lstrip().startswith("{") and '"messages"' in text and "\n{" not in text.strip() else None
        rows = whole["messages"] if isinstance(whole, dict) else [json.loads(line) for line in text.splitlines() if line.strip()]
        spoken = [(str(row["role"]), str(row["content"])) for row in rows]
        title = str(whole.get("title", "")) if isinstance(whole, dict) else ""
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(
            f"{path.name} is no chat that specchat can read.", "/export json or jsonl writes such files.", kind="config", detail=str(error)
        ) from error
    if not any(role == "user" for role, _ in spoken) or any(role not in ("system", "user", "assistant") for role, _ in spoken):
        raise EngineError(f"{path.name} has no conversation of user and assistant.", "/export jsonl writes such files.", kind="config")
    chat.title = title[:200]
    for role, content in spoken:
        if role == "system":
            chat.system = content
        elif role == "user":
            chat.put(content)
        elif chat.turns:
            chat.turns[-1].answered(Version(_done(content), number=chat.turns[-1].next_number()))


def _done(text: str) -> Done:
    return replace(DONE, text=text, sampling=Sampling())
