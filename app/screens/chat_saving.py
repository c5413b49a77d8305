"""Saving for the chat screen: what has changed goes to the saver, the unsent text too, and trouble is said once, in words."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial

from app.saved import Row, chat_row, message_rows, streaming_row, turn_row, version_row
from app.screens.chat_base import ChatBase
from app.traces import Packer
from app.tree import Turn, Version
from app.widgets.panel import Panel
from engine.protocol import Done, Generate, Step

STREAM_S = 0.8  # a crash costs at most the last second
DRAFT_S = 2.0
FIRST_S = 1.0  # a slow disk holds a question back for so long, not longer


class SaveFlow(ChatBase):
    """The database is brought up to the screen, never waited for (but for the question itself)."""

    _streamed_s = 0.0
    _packed: Generate | None = None  # the reply that `_packer` packs; only the saver's thread uses it
    _packer: Packer
    _draft_s = 0.0
    _draft = ""
    _told = ""  # the trouble that was said

    def keep(self, *items: Turn | Version) -> int:
        """Save the chat and these messages; those before them where they are not known yet. Returns a ticket."""
        wanted: dict[int, Row] = {}
        for item in items:
            self._rows(item, wanted, always=True)
        gone, self.chat.gone = tuple(self.chat.gone), []
        return self.saver.put(self.chat.key, chat_row(self.chat), wanted.items(), gone)

    def _rows(self, item: Turn | Version, wanted: dict[int, Row], *, always: bool = False) -> None:
        before = item.parent if isinstance(item, Turn) else item.turn
        if before is not None and before.key not in self.known:
            self._rows(before, wanted)
        if always or item.key not in self.known:
            self.known.add(item.key)
            if isinstance(item, Turn):
                wanted[item.key] = turn_row(item)
            elif item.turn is not None:
                wanted[item.key] = version_row(item, item.turn)

    def keep_settings(self) -> None:
        """Save what is not a message, once there is a chat to save."""
        if self.chat.root.items:
            self.keep()

    def drafted(self, text: str) -> None:
        """This unsent text is saved already."""
        self._draft = text

    def keep_all(self) -> None:
        """Save everything anew."""
        rows = message_rows(self.chat)
        self.known = {row.key for row in rows}
        self.saver.put(self.chat.key, chat_row(self.chat), [(row.key, row) for row in rows])

    async def keep_first(self, turn: Turn) -> None:
        """Have a question on the disk before its answer begins."""
        ticket = self.keep(turn)
        await asyncio.to_thread(self.saver.wait, ticket, FIRST_S)

    @property
    def must_keep(self) -> bool:
        """The reply under way was last saved a while ago."""
        return time.monotonic() - self._streamed_s >= STREAM_S

    def keep_streaming(self, done: Done, steps: tuple[Step, ...], *, ended: bool = False) -> None:
        """Save the reply under way as far as it is; `ended`: nothing will follow. Packing it is work for the saver's thread."""
        version, turn = self.chat.version, self.chat.answering
        assert version is not None
        assert turn is not None
        self._streamed_s = time.monotonic()
        if self._packed is not self.chat.pending:
            self._packed, self._packer = self.chat.pending, Packer()
        row = partial(streaming_row, version, turn, done, steps, self._packer, "done" if ended else "streaming")
        self.saver.put(self.chat.key, chat_row(self.chat), [(version.key, row)], certain=ended)

    def keep_draft(self, *, now: bool = False) -> None:
        """Save the unsent text, when it has changed and some time has passed."""
        now_s = time.monotonic()
        text = self.prompt.text if not self.prompt.text.startswith("/") and self.editing is None else ""
        if text == self._draft or (not now and now_s - self._draft_s < DRAFT_S):
            return
        self._draft_s, self._draft, self.chat.draft = now_s, text, text
        if text or self.known or self.chat.root.items:
            self.saver.put(self.chat.key, chat_row(self.chat), certain=False)

    def watch_saving(self) -> None:
        """Called now and then: drafts, the number of the chat, trouble."""
        self.keep_draft()
        self.chat.number = self.saver.numbers.get(self.chat.key, self.chat.number)
        problem = self.saver.problem
        if problem is not None and problem.kind == "gone":
            self.saver.forget(self.chat.key)
            self.keep_all()
            return
        said = problem.message if problem is not None else ""
        if said == self._told:
            return
        before, self._told = self._told, said
        if problem is not None:
            text = "The chat goes on, but it is NOT SAVED until this is mended."
            self.run_worker(self.panel(Panel(problem.message, text, problem.hint, kind="error")), group="saving")
        elif before:
            self.toast("Saved again: everything that waited is on the disk.")

    def forget_chat(self) -> None:
        """Another chat comes into the screen: finish with this one."""
        self.keep_draft(now=True)
        self.known, self._draft, self._streamed_s = set(), "", 0.0

    def so_far(self, text: str, ids: tuple[int, ...]) -> Done:
        """The reply under way as if it were stopped now; `text` and `ids` are those of this request."""
        pending, ready = self.chat.pending, self.loaded.ready
        assert pending is not None
        assert ready is not None
        return Done(
            reply=pending.reply, finish_reason="cancelled", text=text, token_ids=ids, stop_id=None, seed=pending.seed,
            prompt_tokens=self.meter.prompt_tokens, reused_tokens=0, prefill_s=0.0, sampling=pending.sampling, plain_s=None,
            memory=ready.memory, method=ready.method, drafter=ready.drafter,
        )  # fmt: skip

    def whole(self, done: Done, before: Version | None) -> Done:
        """The same with the beginning that it continues."""
        if before is None:
            return done
        return replace(done, text=before.text + done.text, token_ids=before.done.token_ids + done.token_ids)
