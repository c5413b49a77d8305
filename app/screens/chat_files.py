"""What goes out of a chat and into it: copies, exports, attached files. Always the exact text, never what the screen made of it."""

from __future__ import annotations

import asyncio

from app.code import code_blocks
from app.export import FORMATS, as_text, attach, file_name, write
from app.screens.ask import AskScreen
from app.screens.chat_history import ChatHistory
from app.terminal import for_terminal
from app.widgets.panel import Choice
from app.widgets.reply import Reply
from engine import places
from engine.words import counted

MOST_ATTACHED = 8


class ChatFiles(ChatHistory):
    """The methods behind these keys and commands."""

    _code_at: tuple[int, int] = (0, 0)  # the message whose code was copied last, and which block of it

    def copy(self, text: str, what: str) -> None:
        """To the clipboard, through the terminal, which does not say whether it did."""
        self.app.copy_to_clipboard(text)
        self.toast(f"{what}: {counted(len(text), 'character')} sent to the terminal's clipboard.")

    def do_copy(self, argument: str) -> None:
        """/copy [last|all|code N]"""
        what, _, number = argument.lower().partition(" ")
        if what == "all":
            self.copy(self.chat.markdown(), "The chat")
        elif what == "code":
            self._copy_code(self._last_text(), number.strip())
        elif what not in ("", "last"):
            self.toast("/copy takes last, all, code or code N.", "warning")
        elif self.reply is not None and self.reply.exact:
            self.copy(self.reply.exact, "The reply so far")
        elif self.chat.last is not None:
            self.copy(self.chat.last.text, "The last reply")

    def _last_text(self) -> str:
        if self.reply is not None and self.reply.exact:
            return self.reply.exact
        return self.chat.last.text if self.chat.last is not None else ""

    def _copy_code(self, text: str, number: str) -> None:
        blocks = code_blocks(text)
        if not blocks:
            self.toast("There is no code block in this message.")
        elif not number and len(blocks) == 1:
            self.copy(blocks[0], "The code block")
        elif not number:
            message, at = self._code_at
            at = at % len(blocks) if message == hash(text) else 0
            self._code_at = (hash(text), at + 1)
            self.copy(blocks[at], f"Code block {at + 1} of {len(blocks)}")
        elif number.isdecimal() and 1 <= int(number) <= len(blocks):
            self.copy(blocks[int(number) - 1], f"Code block {number} of {len(blocks)}")
        else:
            self.toast(f"This message has code blocks 1 to {len(blocks)}.", "warning")

    def do_copy_message(self, argument: str) -> None:
        """y"""
        current = self.transcript.current
        if current is not None:
            self.copy(current.exact, "The reply" if isinstance(current, Reply) else "The question")

    def do_copy_chat(self, argument: str) -> None:
        """Y"""
        if self.chat.turns:
            self.copy(self.chat.markdown(), "The chat")

    def do_copy_code(self, argument: str) -> None:
        """c: the code block under the cursor; again: the next one of the same message."""
        if self.transcript.current is not None:
            self._copy_code(self.transcript.current.exact, "")

    async def do_export(self, argument: str) -> None:
        """/export md|json|jsonl [PATH]"""
        kind, _, place = argument.partition(" ")
        if kind not in FORMATS:
            self.toast(f"/export takes {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, and a path if you like.", "warning")
            return
        path = places.written(place.strip() or file_name(self.chat, kind))
        if path.is_dir():
            path = path / file_name(self.chat, kind)
        written = await asyncio.to_thread(lambda: write(path, as_text(self.chat, kind)))
        self.toast(f"Written: {written.absolute()}")

    def do_attach(self, argument: str) -> None:
        """/attach PATH|off"""
        if argument.lower() == "off":
            self.chat.attached = ()
        elif len(self.chat.attached) >= MOST_ATTACHED:
            self.toast(f"At most {MOST_ATTACHED} files go with a question.", "warning")
        else:
            self.chat.attached += (attach(argument.strip("\"'")),)
        self.show_attached()

    async def on_reply_link(self, event: Reply.Link) -> None:
        """A link was clicked: it is opened only after a yes."""
        event.stop()
        self.run_worker(self._link(event.address), group="command")

    async def _link(self, address: str) -> None:
        choices: tuple[Choice, ...] = (Choice("c", "Copy the address", "copy"), Choice("escape", "Leave it", "no"))
        if address.lower().startswith(("http://", "https://")):  # files and programs are not opened at a model's wish
            choices = (Choice("y", "Open it in the browser", "open"), *choices)
        answer = await self.app.push_screen_wait(AskScreen("Open this address?", for_terminal(address[:2000]), choices))
        if answer == "open":
            self.app.open_url(address)
        elif answer == "copy":
            self.copy(address, "The address")
