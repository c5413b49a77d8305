"""What the chat database is asked: the list of chats, search in titles and messages, one chat, old prompts, presets."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import inf

from app.database import Database
from app.owners import is_alive
from app.saved import ChatRow, MessageRow, storable
from app.terminal import one_line
from engine.errors import EngineError

STALE_S = 60.0  # a process on another machine that has not written for so long has ended
BEFORE, LONGEST = 24, 100  # characters of an excerpt, before what was found and in all
INDEXED_FROM = 3  # characters; the index knows runs of three


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of the list of chats."""

    key: int
    number: int
    name: str
    model: str
    turns: int
    changed: float
    draft: str = ""
    excerpt: str = ""  # where the text that was searched for was found
    message: int | None = None  # in which message


class Archive(Database):
    """The reading half of the store. What goes wrong is an EngineError."""

    def chats(self, text: str = "", limit: int = 500) -> list[Listed]:
        """The newest chats first; with a text, those that have it in their title or in a message, with an excerpt."""
        columns = "c.key, c.number, c.name, c.model, c.turns, c.changed, c.draft"
        alive = "c.deleted IS NULL AND (c.turns > 0 OR c.draft <> '')"
        with self._trouble():
            if not (text := storable(text.strip())):
                rows = self._db.execute(f"SELECT {columns} FROM chats c WHERE {alive} ORDER BY c.changed DESC LIMIT ?", (limit,))
                return [Listed(*values) for values in rows]
            found = self._found(text)
            every = self._db.execute(f"SELECT {columns} FROM chats c WHERE {alive} ORDER BY c.changed DESC").fetchall()
        listed = [Listed(*values) for values in every]
        listed = [chat for chat in listed if text.casefold() in chat.name.casefold() or chat.key in found][:limit]
        return [
            chat
            if text.casefold() in chat.name.casefold()
            else replace(chat, excerpt=excerpt(found[chat.key][1], text), message=found[chat.key][0])
            for chat in listed
        ]

    def _found(self, text: str) -> dict[int, tuple[int, str]]:
        """One message with this text for each chat that has some: the newest."""
        like = f"%{text.replace('!', '!!').replace('%', '!%').replace('_', '!_')}%"
        if self.indexed and len(text) >= 3:
            self._catch_up()
            phrase = '"' + text.replace('"', '""').replace("\0", " ") + '"'
            where, value = "m.key IN (SELECT rowid FROM search WHERE search MATCH ?)", phrase
        else:
            where, value = "m.text LIKE ? ESCAPE '!'", like
        rows = self._db.execute(f"SELECT m.chat, m.key, m.text FROM messages m WHERE {where} ORDER BY m.created", (value,))
        return {chat: (key, found) for chat, key, found in rows}

    def _catch_up(self) -> None:
        """Texts enter the index when something is searched for, so that writing them stays cheap."""
        todo = self._db.execute("SELECT key, text FROM messages WHERE indexed = 0 AND state <> 'streaming'").fetchall()
        if not todo:
            return
        with self._writing():
            self._db.executemany("DELETE FROM search WHERE rowid = ?", [(key,) for key, _ in todo])
            self._db.executemany("INSERT INTO search (rowid, text) VALUES (?, ?)", todo)
            self._db.executemany("UPDATE messages SET indexed = 1 WHERE key = ?", [(key,) for key, _ in todo])

    def load(self, key: int) -> tuple[ChatRow, list[MessageRow]]:
        """A chat and all of its messages."""
        with self._trouble():
            row = self._db.execute(
                "SELECT key, title, name, created, model, turns, draft, settings, number FROM chats WHERE key = ? AND deleted IS NULL",
                (key,),
            ).fetchone()
            if row is None:
                raise EngineError("This chat is no longer there.", "/chats lists those that are.", kind="unknown_name")
            rows = self._db.execute(
                "SELECT key, parent, role, text, state, chosen, created, extra, trace FROM messages WHERE chat = ?", (key,)
            ).fetchall()
        return ChatRow(*row), [replace(message, chosen=bool(message.chosen)) for message in (MessageRow(*values) for values in rows)]

    def find(self, wanted: str) -> Listed:
        """The chat that a person means: "" is the last one, else a number, else words of a title."""
        listed = self.chats()
        with_turns = [chat for chat in listed if chat.turns]
        if not wanted.strip():
            if with_turns:
                return with_turns[0]
            raise EngineError("There is no saved chat yet.", "Ask something: chats are saved by themselves.", kind="unknown_name")
        found = [chat for chat in listed if wanted.strip().isdecimal() and chat.number == int(wanted)]
        found = found or [chat for chat in listed if wanted.strip().casefold() in chat.name.casefold()]
        if not found:
            what = f"the number {wanted.strip()}" if wanted.strip().isdecimal() else f"{wanted.strip()!r} in its title"
            raise EngineError(f"There is no saved chat with {what}.", _others(with_turns), kind="unknown_name")
        return found[0]

    def unsent(self) -> int | None:
        """The newest chat that is only an unsent text, and whose process has ended; None where there is none."""
        with self._trouble():
            rows = self._db.execute(
                "SELECT key, owner, changed FROM chats WHERE turns = 0 AND draft <> '' AND deleted IS NULL ORDER BY changed DESC LIMIT 5"
            ).fetchall()
        return next((key for key, owner, changed in rows if not is_alive(owner, time.time() - changed < STALE_S)), None)

    def prompts(self, limit: int = 200, before: float = inf) -> list[str]:
        """What was sent before that time (seconds since 1970), oldest first, without repetitions in a row."""
        query = "SELECT text FROM messages WHERE role = 'user' AND created < ? ORDER BY created DESC LIMIT ?"
        with self._trouble():
            rows = self._db.execute(query, (before, limit)).fetchall()
        texts = [row[0] for row in reversed(rows) if row[0]]
        return [text for n, text in enumerate(texts) if n == 0 or texts[n - 1] != text]

    def presets(self) -> dict[str, str]:
        """Name and settings of each."""
        with self._trouble():
            return dict(self._db.execute("SELECT name, settings FROM presets ORDER BY name").fetchall())


def excerpt(text: str, wanted: str) -> str:
    """The place in a text where `wanted` is, on one line."""
    at = max(0, text.casefold().find(wanted.casefold()))
    start = max(0, at - BEFORE)
    return ("…" if start else "") + one_line(text[start : start + 2 * LONGEST], LONGEST)


def _others(chats: list[Listed]) -> str:
    """A hint that names the newest chats."""
    if not chats:
        return "Nothing was saved yet: ask something, chats are saved by themselves."
    newest = ", ".join(f"{chat.number} ({one_line(chat.name, 30)})" for chat in chats[:3])
    return f"^O lists them all. The newest: {newest}."
