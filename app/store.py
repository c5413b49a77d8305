"""The chat database as the program uses it: reading (`app.archive`) and writing. Readable by its owner only.

All methods may be called from any thread, one at a time. What goes wrong is an EngineError: `damaged`, `locked`, `unwritable`,
`disk_full` or `newer`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from app.archive import STALE_S, Archive
from app.database import BUSY_S
from app.owners import is_alive
from app.saved import ChatRow, MessageRow, storable
from engine.errors import EngineError

FORGET_S = 86_400.0


class Store(Archive):
    """The writing half."""

    def __init__(self, path: Path | None, busy_s: float = BUSY_S) -> None:
        super().__init__(path, busy_s)
        self._deleted: set[int] = set()

    def close(self) -> None:
        """Remove what was deleted, and let the file go."""
        with suppress(EngineError), self._trouble():
            try:
                self._purge()
            finally:
                self._db.close()

    def save(self, chat: ChatRow | None, messages: Sequence[MessageRow] = (), gone: Sequence[int] = (), *, certain: bool = True) -> int:
        """Write a chat and some of its messages, parents first, and remove others; all or nothing. Returns the chat's number.

        `certain` waits until the disk has it; without it a crash of the machine, not of the program, may lose it.
        """
        now_s = time.time()
        with self._trouble():
            self._db.execute(f"PRAGMA synchronous = {'FULL' if certain else 'NORMAL'}")
            with self._writing():
                if gone:
                    self._remove_messages(gone)
                if chat is None:
                    return 0
                self._save_chat(chat, now_s)
                for row in messages:
                    self._save_message(chat.key, row)
                number = self._db.execute("SELECT number FROM chats WHERE key = ?", (chat.key,)).fetchone()[0]
        return int(number)

    def _save_chat(self, chat: ChatRow, now_s: float) -> None:
        """Change the row or make it. One statement for both would use up a chat number at each change."""
        values = (
            storable(chat.title), storable(chat.name), now_s, storable(chat.model), chat.turns, storable(chat.draft),
            storable(chat.settings), self._owner, chat.key,
        )  # fmt: skip
        fields = ("title", "name", "changed", "model", "turns", "draft", "settings", "owner")
        changed = self._db.execute(f"UPDATE chats SET {', '.join(f'{field} = ?' for field in fields)} WHERE key = ?", values)
        if not changed.rowcount:
            names = ", ".join((*fields, "key", "created"))
            self._db.execute(f"INSERT INTO chats ({names}) VALUES ({', '.join('?' * 10)})", (*values, chat.created))

    def _save_message(self, chat: int, row: MessageRow) -> None:
        if row.chosen:
            self._db.execute("UPDATE messages SET chosen = 0 WHERE chat = ? AND parent IS ? AND chosen = 1", (chat, row.parent))
        self._db.execute(
            """
            INSERT INTO messages (key, chat, parent, role, text, state, chosen, created, owner, extra, trace)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
            ON CONFLICT (key) DO UPDATE SET text = excluded.text, state = excluded.state, chosen = excluded.chosen,
                owner = excluded.owner, extra = excluded.extra, trace = excluded.trace,
                indexed = CASE WHEN text = excluded.text THEN indexed ELSE 0 END
            """,
            (
                row.key, chat, row.parent, row.role, storable(row.text), row.state, row.chosen, row.created, self._owner,
                storable(row.extra), row.trace,
            ),
        )  # fmt: skip

    def _remove_messages(self, keys: Sequence[int]) -> None:
        with_children = """
            WITH RECURSIVE below(key) AS (
                SELECT key FROM messages WHERE key = ? UNION ALL SELECT m.key FROM messages m JOIN below ON m.parent = below.key
            ) SELECT key FROM below
        """
        for key in keys:
            found = [(row[0],) for row in self._db.execute(with_children, (key,))]
            if self.indexed:
                self._db.executemany("DELETE FROM search WHERE rowid = ?", found)
            self._db.execute("DELETE FROM messages WHERE key = ?", (key,))

    def rename(self, key: int, title: str, name: str) -> None:
        """Give a chat a title."""
        with self._trouble(), self._writing():
            self._db.execute("UPDATE chats SET title = ?, name = ? WHERE key = ?", (storable(title), storable(name), key))

    def delete(self, key: int) -> None:
        """Take a chat out of the list; `undelete` brings it back until the program ends."""
        self._mark(key, time.time())
        self._deleted.add(key)

    def undelete(self, key: int) -> None:
        """Bring a chat back."""
        self._mark(key, None)
        self._deleted.discard(key)

    def _mark(self, key: int, when: float | None) -> None:
        with self._trouble(), self._writing():
            self._db.execute("UPDATE chats SET deleted = ? WHERE key = ?", (when, key))

    def _purge(self) -> None:
        """Remove what this process deleted, and what another one deleted and did not live to remove."""
        dead = self._db.execute("SELECT key FROM chats WHERE deleted < ?", (time.time() - FORGET_S,))
        keys = [(key,) for key in self._deleted | {row[0] for row in dead}]
        if not keys:
            return
        with self._writing():
            if self.indexed:
                self._db.executemany("DELETE FROM search WHERE rowid IN (SELECT key FROM messages WHERE chat = ?)", keys)
            self._db.executemany("DELETE FROM chats WHERE key = ?", keys)
        self._deleted.clear()
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the log still has the old pages

    def recover(self) -> list[int]:
        """Mark the replies that a dead process left as interrupted; returns the keys of their chats, the last one first."""
        with self._trouble():
            rows = self._db.execute(
                "SELECT m.key, m.chat, m.owner, c.changed FROM messages m JOIN chats c ON c.key = m.chat WHERE m.state = 'streaming'"
                " ORDER BY c.changed DESC"
            ).fetchall()
            dead = [(key, chat) for key, chat, owner, changed in rows if not is_alive(owner, time.time() - changed < STALE_S)]
            if dead:
                with self._writing():
                    self._db.executemany(
                        "UPDATE messages SET state = 'interrupted' WHERE key = ? AND state = 'streaming'", [(key,) for key, _ in dead]
                    )
        return list(dict.fromkeys(chat for _, chat in dead))

    def save_preset(self, name: str, settings: str) -> None:
        """Keep settings under a name; an older one of this name is replaced."""
        with self._trouble(), self._writing():
            self._db.execute("REPLACE INTO presets (name, settings) VALUES (?, ?)", (storable(name), storable(settings)))

    def delete_preset(self, name: str) -> bool:
        """Forget a preset; False where there was none."""
        with self._trouble(), self._writing():
            return self._db.execute("DELETE FROM presets WHERE name = ?", (name,)).rowcount > 0
