"""Questions and replies of the chat screen: sending, drawing what comes, ending, failing. A prompt is never lost."""

from __future__ import annotations

from app.screens.chat_loads import LoadFlow
from app.screens.failures import reply_panel
from app.widgets.messages import Reply, Title, UserMessage
from engine.catalog.specs import NONE
from engine.protocol import Done, Failed, Generate, Prefill, Step


class ReplyFlow(LoadFlow):
    """One reply at a time."""

    asked: tuple[Title, UserMessage] | None = None  # the person's last message on the screen
    reply: Reply | None = None  # the reply under way
    before: Reply | None = None  # the version that it will replace
    ids: tuple[int, ...] = ()  # tokens of the reply under way

    async def send(self, text: str) -> None:
        """A question for the model; waits for the model where it is still loading."""
        if not text.strip():
            return
        if self.chat.pending is not None:
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
        self.asked = await self.transcript.say(text)
        self.transcript.follow()
        if self.loaded.loading_target:
            self.held = True
            self.held_text = text
        else:
            await self.start(self.chat.ask(text))
        self.wake()

    async def release(self) -> None:
        """The model is there: send the question that waited."""
        if self.held:
            self.held = False
            await self.start(self.chat.ask(self.held_text))

    async def give_back(self) -> None:
        """The model did not come: the question that waited goes back into the box."""
        if self.held:
            self.held = False
            await self.restore(self.held_text)

    async def start(self, request: Generate) -> None:
        """Send, and open the place where the reply will be."""
        assert self.loaded.ready is not None
        self.ids = ()
        self.reply = Reply(self.loaded.ready.target)
        await self.show(self.reply)
        self.meter.asked()
        self.client.send(request)
        self.wake()

    async def again(self) -> None:
        """Another version of the last answer."""
        replies = list(self.query(Reply))
        self.before = replies[-1] if replies and self.chat.turns[-1].replies else None
        if self.before is not None:
            self.before.display = False
        await self.start(self.chat.request())

    async def take_reply(self, events: list[Prefill | Step | Done | Failed]) -> None:
        """Everything that has come for the reply under way, drawn at once."""
        text = ""
        last: Done | Failed | None = None
        for event in events:
            if self.chat.pending is None or event.reply != self.chat.pending.reply:
                continue
            if isinstance(event, Prefill):
                self.meter.reading(event)
            elif isinstance(event, Step):
                self.meter.step(event)
                if self.reply is not None:
                    self.reply.record.add(event)
                text += "".join(segment.text for segment in event.segments)
                self.ids += tuple(token for segment in event.segments for token in segment.token_ids)
            else:
                last = event
        if self.reply is not None and text:
            self.reply.feed(text)
            if self.tokens_on:
                await self.reply.show_tokens(True)
            if last is None:
                view = self.transcript  # a reader who is at the end sees no more than one screen of the open block
                await (self.reply.paint() if view.below else self.reply.paint(view.size.height))
            self.meter.visible()
        if isinstance(last, Done):
            await self.done(last)
        elif last is not None:
            await self.failed(last)

    async def done(self, event: Done) -> None:
        """The reply has ended; what was stopped is kept."""
        assert self.reply is not None
        self.meter.done(event)
        reply, self.reply = self.reply, None
        reply.record.finish(event)
        if not self.chat.finished(event):
            await reply.remove()
            await self.unanswered()
            self.toast("Stopped before the first word.")
            return
        version = len(self.chat.turns[-1].replies)
        await reply.finish(event.text, self._foot(event))
        reply.title.numbers(self._numbers(event, version))
        if self.before is not None:
            await self.before.remove()
            self.before = None
        await self.transcript.cheapen()

    async def failed(self, event: Failed) -> None:
        """The reply will not come; what there is of it is kept as a stopped one."""
        assert self.reply is not None
        assert self.chat.pending is not None
        assert self.loaded.ready is not None
        reply, pending, ready = self.reply, self.chat.pending, self.loaded.ready
        self.loaded.lost(event)
        if reply.exact:
            memory, method, drafter = ready.memory, ready.method, ready.drafter
            await self.done(
                Done(
                    reply=pending.reply, finish_reason="cancelled", text=reply.exact, token_ids=self.ids, stop_id=None, seed=pending.seed,
                    prompt_tokens=self.meter.prompt_tokens, reused_tokens=0, prefill_s=0.0, sampling=pending.sampling, plain_s=None,
                    memory=memory, method=method, drafter=drafter,
                )
            )  # fmt: skip
            reply.foot("Broken off by the error below. What is here is kept.")
        else:
            self.reply = None
            self.meter.gave_up()
            self.chat.failed()
            await reply.remove()
        panel = reply_panel(event, drafting=ready.method != "none")
        if not any(choice.name == "trim" for choice in panel.choices):
            await self.unanswered()  # else the question waits for a yes or no
        await self.panel(panel)

    async def unanswered(self) -> None:
        """Take the question back, or show the older version of its answer again."""
        if self.before is not None:
            self.before.display = True
            self.before = None
        text = self.chat.take_back()
        if text is not None:
            await self.restore(text)

    async def restore(self, text: str) -> None:
        """Back into the box, unless the person has begun something new there; Up brings it back then."""
        if self.asked is not None:
            for widget in self.asked:
                await widget.remove()
            self.asked = None
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

    def _foot(self, event: Done) -> str:
        parts = []
        if event.trimmed:
            what = "The oldest message is" if event.trimmed == 1 else f"The {event.trimmed} oldest messages are"
            parts.append(f"{what} no longer sent to the model: the context was too short.")
        if event.finish_reason == "length":
            parts.append(f"Ended after {len(event.token_ids):,} tokens, the limit that was set.")
        elif event.finish_reason == "context":
            parts.append("Ended because the context is full. ^N starts a new chat.")
        elif event.finish_reason == "cancelled":
            parts.append(f"Stopped by you after {len(event.token_ids):,} tokens. Kept. ^R answers again.")
        return " ".join(parts)

    def _numbers(self, event: Done, version: int) -> str:
        now = self.meter.numbers()
        parts = [f"{now.average:.0f} tok/s"] if now.average else []
        parts += [f"τ {now.tau:.1f}"] if now.tau else []
        parts += [f"{now.speedup:.1f}x est"] if now.speedup else []
        parts += [f"version {version}"] if version > 1 else []
        return " · ".join([*parts, f"seed {event.seed}"])
