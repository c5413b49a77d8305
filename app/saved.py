"""Chats as rows of the database, and back. Pure: no file is touched here.

Unknown words in the JSON of a row are left alone, missing ones get their defaults: a chat of another version opens all the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

from app.chat import Chat
from app.traces import Packer
from app.tree import Attachment, Fork, State, Turn, Version, everything
from engine.protocol import Done, FinishReason, Memory, Sampling, Step

FINISH: tuple[FinishReason, ...] = ("stop", "length", "context", "cancelled")
STATES: tuple[State, ...] = ("done", "streaming", "interrupted")


@dataclass(frozen=True, slots=True)
class ChatRow:
    """One row of `chats`, as far as the program writes it."""

    key: int
    title: str
    name: str
    created: float
    model: str
    turns: int
    draft: str
    settings: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class MessageRow:
    """One row of `messages`."""

    key: int
    parent: int | None
    role: str
    text: str
    state: str
    chosen: bool
    created: float
    extra: str
    trace: bytes = b""


Row = MessageRow | Callable[[], MessageRow]  # a function makes its row later, on the saver's thread


def storable(text: str) -> str:
    """Text that a database can hold: a lone half of a surrogate pair, from a broken file name, is no character."""
    return text.encode("utf-8", "replace").decode("utf-8")


# --- to rows --------------------------------------------------------------------------------------------------------


def settings(chat: Chat) -> dict[str, Any]:
    """What a preset keeps, and a chat beside its messages."""
    return {
        "system": chat.system,
        "sampling": asdict(chat.sampling),
        "seed": chat.seed,
        "k": chat.k,
        "max_tokens": chat.max_tokens,
        "think": chat.think,
        "thinking": chat.thinking,
    }


def chat_row(chat: Chat) -> ChatRow:
    """The chat without its messages."""
    turns = chat.turns
    model = next((turn.answer.model for turn in reversed(turns) if turn.answer is not None and turn.answer.model), "")
    text = json.dumps(settings(chat) | {"dropped": chat.dropped, "attached": [asdict(file) for file in chat.attached]}, ensure_ascii=False)
    return ChatRow(chat.key, chat.title, chat.name, chat.created_s, model, len(turns), chat.draft, text, chat.number)


def message_rows(chat: Chat) -> list[MessageRow]:
    """Every message of the tree, parents first, without the reply under way."""
    rows: list[MessageRow] = []
    for turn in everything(chat.root):
        rows += [turn_row(turn), *(version_row(version, turn) for version in turn.replies)]
    return rows


def turn_row(turn: Turn) -> MessageRow:
    """A question."""
    parent = turn.parent.key if turn.parent is not None else None
    chosen = turn.fork.chosen is turn
    extra = json.dumps({"attached": [asdict(file) for file in turn.attached]} if turn.attached else {}, ensure_ascii=False)
    return MessageRow(turn.key, parent, "user", turn.prompt, "done", chosen, turn.created_s, extra)


def version_row(version: Version, turn: Turn) -> MessageRow:
    """An answer."""
    return _row(version, turn, version.done, version.state, version is turn.answer, version.packed)


def streaming_row(
    version: Version, turn: Turn, done: Done, steps: tuple[Step, ...], packer: Packer, state: State = "streaming"
) -> MessageRow:
    """An answer under way: `done` is how far it is, as if it were stopped now."""
    return _row(version, turn, done, state, True, packer.pack(steps, done.tail))


def _row(version: Version, turn: Turn, done: Done, state: str, chosen: bool, trace: bytes) -> MessageRow:
    kept = {
        f.name: getattr(done, f.name) for f in fields(Done) if f.name not in ("reply", "text", "memory", "tail", "sampling", "token_ids")
    }
    extra = kept | {
        "sampling": asdict(done.sampling),
        "token_ids": list(done.token_ids),
        "number": version.number,
        "model": version.model,
        "numbers": version.numbers,
    }
    text = json.dumps(extra, ensure_ascii=False, separators=(",", ":"))
    return MessageRow(version.key, turn.key, "assistant", done.text, state, chosen, version.created_s, text, trace)


# --- from rows ------------------------------------------------------------------------------------------------------


def restore(chat: Chat, row: ChatRow, messages: list[MessageRow]) -> None:
    """Make `chat` the saved one."""
    chat.clear()
    chat.key, chat.number, chat.title, chat.created_s, chat.draft = row.key, row.number, row.title, row.created, row.draft
    saved = _json(row.settings)
    apply(chat, saved)
    chat.dropped = max(0, _whole(saved.get("dropped")) or 0)
    chat.attached = _files(saved)
    rows = sorted(messages, key=lambda message: (message.created, message.key))
    turns = {m.key: Turn(m.text, _files(_json(m.extra)), key=m.key, created_s=m.created) for m in rows if m.role == "user"}
    versions = {m.key: _version(m) for m in rows if m.role == "assistant"}
    for message in rows:  # what hangs on a message that is not there is left out
        if message.key in turns and (message.parent is None or message.parent in versions):
            turn = turns[message.key]
            turn.parent = versions[message.parent] if message.parent is not None else None
            turn.fork = turn.parent.next if turn.parent is not None else chat.root
            _put(turn.fork, turn, message)
        elif message.key in versions and message.parent in turns:
            versions[message.key].turn = turns[message.parent]
            _put(turns[message.parent].versions, versions[message.key], message)
    for turn in turns.values():  # an answer counts even where the row that said so was lost
        if turn.replies and turn.answer is None:
            turn.versions.at = len(turn.replies) - 1


def _put(fork: Fork[Any], item: Turn | Version, message: MessageRow) -> None:
    fork.items.append(item)
    if message.chosen:
        fork.at = len(fork.items) - 1


def apply(chat: Chat, saved: dict[str, Any]) -> None:
    """Settings of a chat or of a preset; what is missing or makes no sense stays as it is."""
    if "system" in saved:
        chat.system = saved["system"] if isinstance(saved["system"], str) and saved["system"] else None
    if isinstance(sampling := saved.get("sampling"), dict):
        chat.sampling = _sampling(sampling)
    if "seed" in saved:
        chat.seed = _whole(saved["seed"])
    if "k" in saved:
        chat.k = _whole(saved["k"])
    if "max_tokens" in saved:
        chat.max_tokens = _whole(saved["max_tokens"]) or None
    if saved.get("think") in ("fold", "show"):
        chat.think = saved["think"]
    if saved.get("thinking", False) in (True, False, None) and "thinking" in saved:
        chat.thinking = saved["thinking"]


def _sampling(saved: dict[str, Any]) -> Sampling:
    """Only numbers that the sampler would take."""
    values: dict[str, Any] = {}
    limits = {"temperature": 1e9, "top_p": 1.0, "top_k": 1e9, "min_p": 1.0, "repeat_penalty": 1e9}
    for name, most in limits.items():
        value = saved.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most:
            values[name] = int(value) if name == "top_k" else float(value)
    return Sampling(**values)


def _version(message: MessageRow) -> Version:
    saved = _json(message.extra)
    finish = saved.get("finish_reason")
    ids = saved.get("token_ids")
    done = Done(
        reply=0,
        finish_reason=finish if finish in FINISH and message.state == "done" else "cancelled",
        text=message.text,
        token_ids=tuple(n for n in ids if isinstance(n, int)) if isinstance(ids, list) else (),
        stop_id=_whole(saved.get("stop_id")),
        seed=_whole(saved.get("seed")) or 0,
        prompt_tokens=_whole(saved.get("prompt_tokens")) or 0,
        reused_tokens=_whole(saved.get("reused_tokens")) or 0,
        prefill_s=_number(saved.get("prefill_s")) or 0.0,
        sampling=_sampling(saved["sampling"]) if isinstance(saved.get("sampling"), dict) else Sampling(),
        plain_s=_number(saved.get("plain_s")),
        memory=Memory(),
        trimmed=_whole(saved.get("trimmed")) or 0,
        method=str(saved.get("method", "none")),
        drafter=str(saved.get("drafter", "none")),
    )
    state: State = next((state for state in STATES if state == message.state), "done")
    version = Version(done, key=message.key, number=_whole(saved.get("number")) or 0, model=str(saved.get("model", "")), state=state)
    version.numbers = str(saved.get("numbers", ""))
    version.created_s = message.created
    version.packed = message.trace
    return version


def _files(saved: dict[str, Any]) -> tuple[Attachment, ...]:
    files = saved.get("attached")
    if not isinstance(files, list):
        return ()
    return tuple(Attachment(str(f["name"]), str(f["text"])) for f in files if isinstance(f, dict) and "name" in f and "text" in f)


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
