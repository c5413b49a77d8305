"""The layout of the chat database, as steps from one version to the next. A step that was released is never changed.

`PRAGMA user_version` says how far a file is. All steps that are missing run in one transaction, so a file is never half way.
"""

from __future__ import annotations

STEPS: tuple[tuple[str, ...], ...] = (
    (  # 1
        """
        CREATE TABLE chats (
            key      INTEGER NOT NULL UNIQUE,
            number   INTEGER PRIMARY KEY AUTOINCREMENT,  -- what people type
            title    TEXT    NOT NULL DEFAULT '',        -- '' = the beginning of the first question
            name     TEXT    NOT NULL DEFAULT '',        -- what lists show
            created  REAL    NOT NULL,                   -- seconds since 1970
            changed  REAL    NOT NULL,
            model    TEXT    NOT NULL DEFAULT '',        -- the target of the last reply
            turns    INTEGER NOT NULL DEFAULT 0,         -- of the conversation that is shown
            draft    TEXT    NOT NULL DEFAULT '',        -- the unsent text of the box
            settings TEXT    NOT NULL DEFAULT '{}',      -- JSON
            owner    TEXT    NOT NULL DEFAULT '',        -- the process that wrote it last
            deleted  REAL                                -- when; such chats are removed at the end of the program
        )
        """,
        """
        CREATE TABLE messages (
            key      INTEGER PRIMARY KEY,                -- sorts by time
            chat     INTEGER NOT NULL REFERENCES chats(key) ON DELETE CASCADE,
            parent   INTEGER REFERENCES messages(key) ON DELETE CASCADE,
            role     TEXT    NOT NULL,                   -- user | assistant
            text     TEXT    NOT NULL,                   -- exact
            state    TEXT    NOT NULL DEFAULT 'done',    -- done | streaming | interrupted
            chosen   INTEGER NOT NULL DEFAULT 0,         -- 1 = of all with this parent, this one counts
            created  REAL    NOT NULL,
            owner    TEXT    NOT NULL DEFAULT '',        -- the process that wrote it last
            extra    TEXT    NOT NULL DEFAULT '{}',      -- JSON: attachments; seed, sampling, numbers, token ids
            trace    BLOB    NOT NULL DEFAULT x'',       -- steps and segments, see app/traces.py
            indexed  INTEGER NOT NULL DEFAULT 0          -- 1 = the search index has this text
        )
        """,
        "CREATE INDEX messages_by_chat ON messages(chat)",
        "CREATE INDEX messages_by_parent ON messages(parent)",
        "CREATE INDEX messages_streaming ON messages(state) WHERE state = 'streaming'",
        "CREATE INDEX messages_not_indexed ON messages(indexed) WHERE indexed = 0",
        "CREATE INDEX chats_by_time ON chats(changed)",
        "CREATE TABLE presets (name TEXT PRIMARY KEY COLLATE NOCASE, settings TEXT NOT NULL)",
    ),
)
LATEST = len(STEPS)
# Not part of the numbered layout: a build of SQLite without FTS5 can use the same file, and searches it row by row.
INDEX = "CREATE VIRTUAL TABLE IF NOT EXISTS search USING fts5(text, tokenize='trigram')"
