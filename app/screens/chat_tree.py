"""Walking and changing the tree of the conversation: the cursor, versions and branches, editing, undo, continue, delete."""

from __future__ import annotations

from app.screens.ask import AskScreen
from app.screens.chat_replies import ReplyFlow
from app.tree import Turn, Version
from app.widgets.messages import UserMessage
from app.widgets.panel import Choice
from app.widgets.reply import Reply

THINKING = {
    "on": (True, "The next replies begin with thoughts, where the model's template can ask for them."),
    "off": (False, "The next replies come without thoughts, where the model's template can ask for that."),
    "auto": (None, "Whether the model thinks is its own affair again."),
}
CUT_OFF = ("cancelled", "length")


class ChatTree(ReplyFlow):
    """The methods behind these keys and commands."""

    # --- the cursor --------------------------------------------------------------------------------------------------

    async def do_message_up(self, argument: str) -> None:
        await self.transcript.move(-1)

    async def do_message_down(self, argument: str) -> None:
        await self.transcript.move(1)

    async def do_first_message(self, argument: str) -> None:
        turns = self.chat.turns
        if turns and not self.situation.generating:
            exchange = await self.transcript.reveal(turns[0])
            if exchange is not None:
                self.transcript.point(exchange.question)
        self.transcript.scroll_home(animate=False)

    async def do_last_message(self, argument: str) -> None:
        await self.transcript.to_end()
        places = self.transcript.places
        if places:
            self.transcript.point(places[-1], scroll=False)
        self.transcript.follow()

    @property
    def here(self) -> Turn | None:
        """The turn under the cursor, else the last one."""
        exchange = self.transcript.exchange if self.focused is self.transcript else None
        turns = self.chat.turns
        return exchange.turn if exchange is not None and exchange.turn is not None else turns[-1] if turns else None

    @property
    def on_question(self) -> bool:
        """The cursor stands on a question of the person."""
        return isinstance(self.transcript.current, UserMessage)

    def do_unfold(self, argument: str) -> None:
        """o: the thoughts of the reply under the cursor."""
        current = self.transcript.current
        if isinstance(current, Reply) and current.thoughts.source:
            current.fold(current.unfolded)
        else:
            self.transcript.action_page_down()

    def do_think(self, argument: str) -> None:
        """/think: how thoughts are shown in this chat, and whether the model shall have any."""
        if argument.lower() in THINKING:
            self.chat.thinking, said = THINKING[argument.lower()]
            self.toast(said)
            self.keep_settings()
            return
        if argument.lower() not in ("fold", "show"):
            self.toast("/think takes fold, show, on, off or auto.", "warning")
            return
        self.chat.think = "show" if argument.lower() == "show" else "fold"
        self.transcript.unfolded = self.chat.think == "show"
        for reply in self.query(Reply):
            reply.fold(self.chat.think == "fold")
        self.keep_settings()

    # --- versions and branches ---------------------------------------------------------------------------------------

    async def do_retry_here(self, argument: str) -> None:
        """r: the answer under the cursor anew."""
        turn = self.here
        if turn is not None and not self.held:
            await self.again(turn)

    async def do_version_before(self, argument: str) -> None:
        await self._turn_over(-1)

    async def do_version_after(self, argument: str) -> None:
        await self._turn_over(1)

    async def _turn_over(self, by: int) -> None:
        """Another version of the answer, or another branch of the question, under the cursor."""
        turn = self.here
        if turn is None:
            return
        fork = turn.fork if self.on_question and self.focused is self.transcript else turn.versions
        if not fork.step(by):
            self.toast("There is no other version in this direction." if len(fork.items) > 1 else "There is only this version.")
            return
        self.chat.dropped = 0
        chosen = fork.chosen
        assert isinstance(chosen, (Turn, Version))
        await self._show_changed(chosen)

    async def _show_changed(self, *items: Turn | Version) -> None:
        """The conversation has another course: draw it, keep it, and leave the cursor where it can be."""
        at, focused = self.transcript.current, self.focused is self.transcript
        question = isinstance(at, UserMessage)
        await self.transcript.show_from(self.chat.turns)
        self.keep(*items)
        if not focused or not items:
            return
        turn = items[0] if isinstance(items[0], Turn) else items[0].turn
        exchange = await self.transcript.reveal(turn) if turn is not None else None
        if exchange is not None:
            self.transcript.point(exchange.question if question or exchange.reply is None else exchange.reply)

    # --- changing ----------------------------------------------------------------------------------------------------

    def do_edit(self, argument: str) -> None:
        """e: change a question and send it again; the old one stays as a branch."""
        turn = self.here
        if turn is None:
            return
        if self.prompt.text.strip() and self.editing is None:
            self.toast("There is unsent text in the box: send it or clear it first.", "warning")
            return
        self.editing = turn
        self.prompt.put(turn.prompt)
        self.prompt.focus()
        self.show_attached()

    def do_edit_here(self, argument: str) -> None:
        self.do_edit(argument)

    def leave_edit(self) -> None:
        """Not this time."""
        self.editing = None
        self.prompt.put("")
        self.show_attached()

    async def do_undo(self, argument: str) -> None:
        turn = self.chat.undo()
        if turn is None:
            return
        if not self.prompt.text:
            self.prompt.put(turn.prompt)
        await self._show_changed(turn)
        self.toast("The last turn is left out. /redo brings it back.")

    async def do_redo(self, argument: str) -> None:
        turn = self.chat.redo()
        if turn is None:
            self.toast("There is nothing to bring back.")
            return
        if self.prompt.text == turn.prompt:
            self.prompt.put("")
        await self._show_changed(turn)

    async def do_carry_on(self, argument: str) -> None:
        """/continue: go on with a reply that was cut off."""
        turns = self.chat.turns
        answer = turns[-1].answer if turns else None
        if answer is None or not answer.text:
            self.toast("There is no reply to continue.")
        elif answer.finish_reason not in CUT_OFF:
            self.toast("The last reply is complete. ^R writes another one.")
        else:
            await self.go_on()

    @property
    def is_cut_off(self) -> bool:
        """The last reply ended before it was complete."""
        turns = self.chat.turns
        answer = turns[-1].answer if turns else None
        return answer is not None and bool(answer.text) and answer.finish_reason == "cancelled"

    async def do_delete(self, argument: str) -> None:
        """d: take a version, or a question with all that follows, out of the chat for good."""
        turn = self.here
        if turn is None:
            return
        fork = turn.versions
        version = turn.answer if not self.on_question and turn.answer is not None else None
        one_of_some = version is not None and len(fork.items) > 1
        what = "this version of the answer" if one_of_some else "this question, its answers, and everything that follows"
        yes, no = Choice("y", "Delete it", "yes"), Choice("escape", "Keep it", "no")
        if await self.app.push_screen_wait(AskScreen(f"Delete {what}?", "This cannot be undone.", (yes, no))) != "yes":
            return
        if one_of_some and version is not None:
            fork.remove(version)
            self.chat.gone.append(version.key)
            await self._show_changed(*([turn.answer] if turn.answer is not None else []))
        else:
            attached = self.chat.attached
            self.chat.drop(turn)
            self.chat.attached = attached
            await self._show_changed()
