"""Questions and replies of the chat screen: sending, drawing what comes, ending, failing. A prompt is never lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from app.foot import foot, read_again, slower, summary
from app.screens.chat_loads import LoadFlow
from app.screens.failures import reply_panel
from app.tree import Turn, Version, behind, with_tail
from app.widgets.exchange import Exchange, show_numbers
from app.widgets.reply import Reply
from engine.catalog.specs import NONE
from engine.protocol import Done, Failed, Generate, Prefill, Segment, Step


class ReplyFlow(LoadFlow):
    """One reply at a time."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._slow: set[tuple[str, int | None]] = set()  # drafters and fixed draft lengths that were said to be slower than plain

    asked: Exchange | None = None  # the turn that is answered, or waits for the model
    reply: Reply | None = None  # the reply under way
    before: Reply | None = None  # the version that it will replace
    stop_asked: bool = False  # of the reply under way, or about to be sent
    ids: tuple[int, ...] = ()  # tokens of the reply under way
    steps: list[Step]  # and its steps
    begun: Version | None = None  # the answer that it continues
    opening = False  # a question is on its way to the engine

    async def send(self, text: str) -> None:
        """A question for the model; waits for the model where it is still loading."""
        if not text.strip() and not self.chat.attached:
            return
        if self.taken:
            self.toast("A reply is being written: Esc stops it. Your text stays in the box.")
            return
        if self.held:
            self.toast("The question before waits for the model. Your text stays in the box.")
            return
        if self.loaded.ready is None and not self.loaded.loading_target:
            if self.loaded.target is None:
                self.toast("No model is loaded: /model lists them.", "warning")
                return
            self.loaded.load(self.loaded.target)  # it was lost, for instance to an out-of-memory: load it again
        self.prompt.sent(text)
        edited, self.editing = self.editing, None
        with self._opening():
            if edited is not None:
                await self.transcript.show_from(self.chat.before(edited))
            self.asked = await self.transcript.say(text, edited.attached if edited is not None else self.chat.attached)
            self.transcript.follow()
            if self.loaded.loading_target:
                self.held = True
                self.held_text, self.held_instead = text, edited
            else:
                await self.ask(text, edited)
        self.wake()

    @property
    def taken(self) -> bool:
        """A reply is under way, or its question is being drawn: keys come faster than that, for instance from a paste as typed text."""
        return self.opening or self.chat.pending is not None

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """From the key to the request, no other reply may begin."""
        self.opening = True
        try:
            yield
        finally:
            self.opening = False

    async def ask(self, text: str, instead: Turn | None) -> None:
        """Put a question into the conversation, and start the answer."""
        request = self.chat.ask(text) if instead is None else self.chat.ask_instead(instead, text)
        self.show_attached()
        await self.start(request)

    async def release(self) -> None:
        """The model is there: send the question that waited."""
        if self.held:
            self.held = False
            await self.ask(self.held_text, self.held_instead)

    async def give_back(self) -> None:
        """The model did not come: the question that waited goes back into the box."""
        if self.held:
            self.held = False
            await self.restore(self.held_text)

    async def start(self, request: Generate) -> None:
        """Send, and open the place where the reply will be."""
        assert self.loaded.ready is not None
        assert self.chat.answering is not None
        turn, target = self.chat.answering, self.loaded.ready.target
        self.ids, self.steps, self.stop_asked = (), [], False
        self.begun = turn.answer if request.carry_on else None
        if self.asked is None or self.asked.turn is not turn:
            if self.asked is None or self.asked.turn is not None:
                self.asked = await self.transcript.reveal(turn)
            assert self.asked is not None
            self.transcript.answers(self.asked, [*self.chat.before(turn), turn])
        self.before = self.asked.reply
        opens = target in self.thinkers or (self.loaded.ready.opens_thoughts and request.think is not False)
        self.reply = Reply(target, opened=opens and self.begun is None, unfolded=self.chat.think == "show")
        if self.begun is not None:
            self.reply.begin(self.begun)
        await self.asked.put(self.reply)
        if self.begun is not None:
            await self.reply.draw()
        self.transcript.show_reply(self.asked)
        self.meter.asked((request.messages, request.sampling, request.max_tokens))
        await self.keep_first(turn)
        self.client.send(request)
        if self.stop_asked:  # Esc came before the engine had the question, which the stop must reach
            self.client.stop()
        self.wake()

    async def again(self, turn: Turn | None = None) -> None:
        """Another version of an answer, by default the last; what followed the old one stays with it."""
        if self.taken:
            return
        turn = turn or self.chat.turns[-1]
        with self._opening():
            await self.transcript.show_from([*self.chat.before(turn), turn])
            self.asked = None
            await self.start(self.chat.request(turn=turn))

    async def go_on(self) -> None:
        """Continue the last answer, which was cut off."""
        if self.taken:
            return
        self.asked = None
        with self._opening():
            await self.transcript.to_end()
            await self.start(self.chat.carry_on())

    async def take_reply(self, events: list[Prefill | Step | Done | Failed]) -> None:
        """Everything that has come for the reply under way, drawn at once."""
        new: list[Segment] = []
        last: Done | Failed | None = None
        for event in events:
            if self.chat.pending is None or event.reply != self.chat.pending.reply:
                continue
            if isinstance(event, Prefill):
                self.meter.reading(event)
            elif isinstance(event, Step):
                self.meter.step(event)
                self.ids += tuple(token for segment in event.segments for token in segment.token_ids)
                self.steps.append(event)
                new += self._record(event)
            else:
                last = event
        if self.reply is not None and (self.reply.behind or any(segment.text for segment in new)):
            self.reply.feed(new)
            if self.tokens_on:
                await self.reply.show_tokens(True)
            if last is None:
                view = self.transcript  # a reader who is at the end sees no more than one screen of the open block
                await (self.reply.paint() if view.below else self.reply.paint(view.size.height))
                if self.must_keep:
                    self.keep_now()
            self.meter.visible()
        if isinstance(last, Done):
            await self.done(last)
        elif last is not None:
            await self.failed(last)

    def _record(self, step: Step) -> tuple[Segment, ...]:
        """Put a step into the reply's record; a continued reply counts on. Returns the pieces that are new."""
        if self.reply is None:
            return step.segments
        if self.begun is not None:
            step = behind(step, self.begun.steps[-1] if self.begun.steps else None)
        kept = with_tail(step, self.begun.done.tail) if self.begun is not None and len(self.steps) == 1 else step
        self.reply.record.add(kept)
        return step.segments

    def keep_now(self, *, ended: bool = False) -> None:
        """Save the reply under way, if it has text."""
        if self.reply is not None and self.reply.exact and self.chat.pending is not None and self.loaded.ready is not None:
            so_far = self.whole(self.so_far(self._new_text(), self.ids), self.begun)
            self.keep_streaming(so_far, tuple(self.reply.record.steps), ended=ended)

    def _new_text(self) -> str:
        """What this request has brought so far."""
        assert self.reply is not None
        return self.reply.exact[len(self.begun.text) if self.begun is not None else 0 :]

    async def done(self, event: Done) -> None:
        """The reply has ended; what was stopped is kept."""
        assert self.reply is not None
        assert self.chat.version is not None
        assert self.chat.pending is not None
        assert self.loaded.ready is not None
        self.meter.done(event)
        reply, self.reply = self.reply, None
        version, text, k = self.chat.version, self.whole(event, self.begun).text, self.chat.pending.k
        if not self.chat.finished(event, tuple(self.steps), self.loaded.ready.target):
            await self._withdraw(reply)
            self.toast("Stopped before the first word.")
            return
        before, self.before, self.begun = self.before, None, None  # from here on another reply can begin
        reply.record.finish(event)
        reply.version = version
        version.numbers = summary(self.meter.numbers(), event, read_again(event, version))
        self.keep(version)  # before the drawing, which takes its time where the reply is long
        await reply.finish(text, foot(event, len(version.done.token_ids)))
        show_numbers(reply, version)
        if reply.thoughts.late:
            self.thinkers.add(version.model)
        if before is not None:
            await before.remove()
        await self.transcript.cheapen()
        await self._judge(event, k)

    async def _withdraw(self, reply: Reply) -> None:
        """The reply under way is nothing: what was there before is there again."""
        await reply.remove()
        if self.asked is not None:
            self.asked.reply = self.before
        if self.before is not None:
            self.before.display = True
        await self.unanswered()

    async def failed(self, event: Failed) -> None:
        """The reply will not come; what there is of it is kept as a stopped one."""
        assert self.reply is not None
        assert self.loaded.ready is not None
        reply, drafting = self.reply, self.loaded.ready.method != "none"
        so_far = self.so_far(self._new_text(), self.ids)
        panel = reply_panel(event, self.chat.pending, drafting=drafting)
        if so_far.text:
            await self.done(so_far)
            reply.foot("Broken off by the error below. What is here is kept.")
            self.loaded.lost(event)
        else:
            self.loaded.lost(event)
            self.reply = None
            self.meter.gave_up()
            self.chat.failed()
            if any(choice.name == "trim" for choice in panel.choices):  # the question waits for a yes or no
                await reply.remove()
                if self.asked is not None:
                    self.asked.reply = self.before
            else:
                await self._withdraw(reply)
        await self.panel(panel)

    async def unanswered(self) -> None:
        """Take the question back, or show the older version of its answer again."""
        if self.before is not None:
            self.before.display = True
        self.before = self.begun = None
        text = self.chat.take_back()
        if text is not None:
            await self.restore(text)
        turns = self.chat.turns
        await self.transcript.show_from(turns)
        answered = self.asked.turn if self.asked is not None else None
        counts = answered.answer if answered in turns and answered is not None else None
        self.keep(*([counts] if counts is not None else []))

    async def restore(self, text: str) -> None:
        """Back into the box, unless the person has begun something new there; Up brings it back then."""
        if self.asked is not None:
            await self.asked.remove()
            self.asked = None
        self.show_attached()
        if not self.prompt.text:
            self.prompt.put(text)

    async def reply_choice(self, name: str) -> None:
        """What was chosen on the panel of a failed reply."""
        if name == "trim":
            await self.start(self.chat.request(trim=True))
        elif name == "refuse":
            await self.unanswered()
        elif name == "plain":
            await self.swap(NONE)

    held_text = ""
    held_instead: Turn | None = None

    async def _judge(self, event: Done, k: int | None) -> None:
        """Say that a fixed draft length makes it slower, once for each drafter and length."""
        text = slower(self.meter.numbers(), event, k)
        if text and (event.drafter, k) not in self._slow:
            self._slow.add((event.drafter, k))
            await self.note(text)
