"""Looking under the hood: the exact prompt, how full the context is, the log, this machine, the keys."""

from __future__ import annotations

import asyncio
from collections import deque

from app.commands import COMMANDS, key_label, keys_of
from app.screens.chat_races import ChatRaces
from app.screens.text import TextScreen
from app.widgets.panel import Panel
from app.widgets.stats_panel import bar
from engine import places
from engine.errors import EngineError
from engine.logs import FILE
from engine.protocol import Generate, Look, Looked, Message
from engine.words import counted

LOG_LINES = 500
BAR = 30
TEMPLATES = {
    "model": "the model's own chat template",
    "models.toml": "the template in models.toml",
    "none": "plain role labels",
}


class ChatLooks(ChatRaces):
    """The methods behind /prompt, /context, /log, /doctor and /keys."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._looks: deque[str] = deque()  # what the answers, in order, are for

    def do_show_prompt(self, argument: str) -> None:
        """What the model read for the last question."""
        self._look("prompt", whole=False)

    def do_context(self, argument: str) -> None:
        """How full the context is with all that was said."""
        self._look("context", whole=True)

    def _look(self, what: str, *, whole: bool) -> None:
        """Ask for the prompt of the last question; `whole`: with its answer, as the next question will find it."""
        turns = self.chat.turns
        whole = whole and bool(turns) and turns[-1].answer is not None
        messages = self.chat.messages(turns[-1], whole) if turns else self._empty_chat()
        self._looks.append(what)
        self.client.send(Look(Generate(0, messages, think=self.chat.thinking, carry_on=whole)))
        self.wake()

    def _empty_chat(self) -> tuple[Message, ...]:
        system = (Message("system", self.chat.system),) if self.chat.system else ()
        return (*system, Message("user", "(your question)"))

    @property
    def looking(self) -> bool:
        """An answer of the engine is still to come, and it is no load's."""
        return bool(self._looks)

    def look_failed(self) -> None:
        """It will not come."""
        self._looks.popleft()

    async def looked(self, event: Looked) -> None:
        """The engine has answered."""
        what = self._looks.popleft()
        if what == "prompt":
            fact = f"{counted(event.tokens, 'token')} · {TEMPLATES[event.template]}"
            self.app.push_screen(TextScreen("The prompt of the last question" if self.chat.turns else "The prompt", fact, event.text))
            return
        share = event.tokens / event.context if event.context else 0.0
        lines = [
            f"{bar(share, BAR)} {share:.0%}  {event.tokens:,} of {counted(event.context, 'token')}",
            f"{event.reused:,} of them are in the cache and are not read again.",
            f"{counted(len(self.chat.turns), 'turn')}, {TEMPLATES[event.template]}.",
        ]
        if self.chat.dropped:
            were = "message is" if self.chat.dropped == 1 else "messages are"
            lines.append(f"The {self.chat.dropped} oldest {were} no longer sent: there was no room.")
        await self.panel(Panel("Context", "\n".join(lines), "/prompt shows the text itself.", kind="list"), asked=True)

    def do_log(self, argument: str) -> None:
        """The end of the log file."""
        path = places.log_dir() / FILE
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        except OSError as error:
            raise EngineError(f"{path} cannot be read: {error.strerror}.", "Check its rights.", kind="unwritable") from error
        text = "\n".join(lines[-LOG_LINES:]) or "Nothing was logged yet: only unexpected errors are, and never what you write."
        self.app.push_screen(TextScreen("Log", str(path), text, end=True))

    async def do_doctor(self, argument: str) -> None:
        """What `specchat doctor` says."""
        from app import doctor  # when it is asked for: the first frame does not wait for it

        screen = TextScreen("This machine")
        self.app.push_screen(screen)
        screen.fill(doctor.words(await asyncio.to_thread(doctor.examine)))

    def do_keys(self, argument: str) -> None:
        """All ids with their keys, and where they are changed."""
        rebound = getattr(self.app, "rebound", {})
        rows = [(c.name, " ".join(key_label(k) for k in keys_of(c, rebound).split(",")), c.help) for c in COMMANDS if c.keys and c.bind]
        wide = max(len(name) for name, _, _ in rows)
        keys = max(len(key) for _, key, _ in rows)
        path = places.config_dir() / "config.toml"
        head = f'{path} can give any of these another key, in a table [keys]; for example\n\n[keys]\ntokens = "ctrl+x"\n\n'
        text = "\n".join(f"{name:<{wide}}  {key:<{keys}}  {about}" for name, key, about in rows)
        self.app.push_screen(TextScreen("Keys", "", head + text))
