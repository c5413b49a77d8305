"""Opening saved chats, their titles, and searching in the one that is open."""

from __future__ import annotations

import asyncio

from app.export import load
from app.saved import restore
from app.screens.chat_tree import ChatTree
from app.terminal import one_line
from app.tree import Turn, Version
from app.widgets.reply import Reply
from engine.errors import EngineError
from engine.words import counted

LONGEST_TITLE = 200
EMPTY = "This chat is empty: nothing was sent in it yet. ^O lists the others."


class ChatHistory(ChatTree):
    """The methods behind these keys and commands."""

    sought = ""  # what was searched for in this chat

    # --- the start ---------------------------------------------------------------------------------------------------

    async def resume(self) -> None:
        """Open what was asked for, or what a crash interrupted, or an unsent text; bring back old prompts."""
        try:
            store = await asyncio.to_thread(lambda: self.saver.store)
            interrupted = await asyncio.to_thread(store.recover)
            self.prompt.remember(await asyncio.to_thread(store.prompts, before=self.opened_s))
        except EngineError as error:
            self.saver.failed(error)
            self.watch_saving()
            self.show_lines()
            return
        try:
            if self.options.resume is not None:
                await self.open_chat(store.find(self.options.resume).key)
                self.chat.insist()
                if not self.chat.root.items:
                    self.toast("Nothing was sent in this chat yet: only its unsent text was kept." if self.chat.draft else EMPTY)
            elif interrupted:
                await self.open_chat(interrupted[0])
                self.toast("The last time the program ended in the middle of a reply. ^N begins a new chat.")
            elif (unsent := await asyncio.to_thread(store.unsent)) is not None:
                await self.open_chat(unsent)
        except EngineError as error:
            await self.trouble(error)

    async def open_chat(self, key: int, message: int | None = None) -> None:
        """Show a saved chat, at its end or at one message. Raises EngineError when it is not there."""
        row, messages = await asyncio.to_thread(lambda: self.saver.store.load(key))
        if self.situation.generating or self.held:
            self.toast("Not while a reply is written: Esc stops it.", "warning")
            return
        self.forget_chat()
        restore(self.chat, row, messages)
        self.known = {saved.key for saved in messages}
        self.asked = self.before = self.editing = None
        self.prompt.put(self.chat.draft)
        self.drafted(self.chat.draft)
        self.meter.cleared()
        self.transcript.unfolded = self.chat.think == "show"
        self.show_attached()
        self.show_lines()
        found = next((turn for turn in self.chat.turns if message in (turn.key, turn.answer.key if turn.answer else None)), None)
        await self.transcript.open(self.chat.turns, found)
        if found is not None:
            await self._point(found, answer=found.key != message)
        else:
            self.prompt.focus()
        if self.tokens_on:
            for reply in self.query(Reply):
                await reply.show_tokens(True)

    # --- the list ----------------------------------------------------------------------------------------------------

    async def do_chats(self, argument: str) -> None:
        from app.screens.chats import ChatsScreen

        self.keep_draft(now=True)
        await asyncio.to_thread(self.saver.wait_all, 1.0)
        wanted = await self.app.push_screen_wait(ChatsScreen(self.saver, self.chat.key, argument))
        self.prompt.focus()
        if wanted is not None and wanted.key != self.chat.key:
            await self.open_chat(wanted.key, wanted.message)
        elif wanted is not None and wanted.message is not None:
            found = next((turn for turn in self.chat.turns if wanted.message in (turn.key, turn.answer.key if turn.answer else None)), None)
            if found is not None:
                await self._point(found, answer=found.key != wanted.message)

    def do_title(self, argument: str) -> None:
        if argument:
            self.chat.title = one_line(argument)[:LONGEST_TITLE]
            self.keep_settings()
        else:
            self.toast(f"Title: {self.chat.name}" if self.chat.name else "This chat has no title yet.")

    async def do_load(self, argument: str) -> None:
        """A chat from an exported file, as a new one."""
        if self.held:
            self.toast("The question before waits for the model: Esc stops it.")
            return
        self.forget_chat()
        self.chat.clear()
        try:
            load(self.chat, argument)
        except EngineError:
            self.chat.clear()
            await self.transcript.clear()
            raise
        self.asked = self.before = self.editing = None
        self.meter.cleared()
        await self.transcript.open(self.chat.turns)
        self.keep_all()
        self.toast(f"Loaded: {counted(len(self.chat.turns), 'turn')}.")

    # --- searching in the chat ---------------------------------------------------------------------------------------

    async def do_find(self, argument: str) -> None:
        """Find a text in this chat; without one, ask for it."""
        if not argument:
            self.prompt.put("/find ")
            self.prompt.focus()
            return
        self.sought = argument
        await self._seek(0)

    async def do_find_here(self, argument: str) -> None:
        await self.do_find("")

    async def do_find_next(self, argument: str) -> None:
        await self._seek(1)

    async def do_find_before(self, argument: str) -> None:
        await self._seek(-1)

    def _matches(self) -> list[tuple[Turn, Version | None]]:
        wanted = self.sought.casefold()
        found: list[tuple[Turn, Version | None]] = []
        for turn in self.chat.turns:
            if wanted in turn.prompt.casefold():
                found.append((turn, None))
            if turn.answer is not None and wanted in turn.answer.text.casefold():
                found.append((turn, turn.answer))
        return found

    async def _seek(self, by: int) -> None:
        matches = self._matches() if self.sought else []
        if not matches:
            self.toast(f"Not in this chat: {self.sought}" if self.sought else "Nothing was searched for yet: / asks what.")
            return
        turns = self.chat.turns
        exchange = self.transcript.exchange
        here = exchange.turn if exchange is not None else None
        place = (turns.index(here), not self.on_question) if here in turns else (-1, False)
        places = [(turns.index(turn), version is not None) for turn, version in matches]
        if by >= 0:
            at = next((n for n, p in enumerate(places) if p > place or (by == 0 and p == place)), 0)
        else:
            at = next((n for n in range(len(places) - 1, -1, -1) if places[n] < place), len(places) - 1)
        turn, version = matches[at]
        await self._point(turn, answer=version is not None)
        self.toast(f"{at + 1} of {len(matches)} · n next, N before")

    async def _point(self, turn: Turn, *, answer: bool) -> None:
        """The cursor on a question or its answer, near what was searched for."""
        exchange = await self.transcript.reveal(turn)
        if exchange is None:
            return
        place = exchange.reply if answer and exchange.reply is not None else exchange.question
        self.transcript.focus()
        self.transcript.point(place)
        if isinstance(place, Reply) and self.sought:
            offset = place.exact.casefold().find(self.sought.casefold())
            if offset > 0:
                self.call_after_refresh(self.transcript.to_row, place, offset)
