"""Settings of one chat: sampling, seed, length, system prompt; and presets, which keep them under a name."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import fields, replace

from app.export import attach
from app.saved import apply, settings
from app.screens.chat_files import ChatFiles
from app.terminal import one_line
from app.widgets.panel import Panel
from engine.protocol import Sampling
from engine.words import counted

LONGEST_DRAFT = 64
LIMITS = {  # slash word -> field of Sampling, least, most, words
    "temp": ("temperature", 0.0, math.inf, "Temperature", "a number of 0 or more"),
    "topp": ("top_p", 0.0, 1.0, "Top-p", "a number from 0 to 1"),
    "topk": ("top_k", 0, 10**9, "Top-k", "a whole number of 0 or more"),
    "minp": ("min_p", 0.0, 1.0, "Min-p", "a number from 0 to 1"),
    "penalty": ("repeat_penalty", 0.01, 100.0, "Repeat penalty", "a number above 0, for example 1.1"),
}


class ChatSettings(ChatFiles):
    """The methods behind these commands."""

    def do_k(self, argument: str) -> None:
        if argument.lower() == "auto":
            self.chat.k = None
            self.toast("The number of drafted tokens is decided live again, from the next reply on.")
        elif argument.isdecimal() and int(argument) <= LONGEST_DRAFT:
            self.chat.k = int(argument)
            self.toast(f"The next replies draft exactly {counted(int(argument), 'token')} per step.")
        else:
            self.toast(f"/k takes a number from 0 to {LONGEST_DRAFT}, or auto.", "warning")
        self.keep_settings()

    def do_temp(self, argument: str) -> None:
        self._sample("temp", argument)

    def do_topp(self, argument: str) -> None:
        self._sample("topp", argument)

    def do_topk(self, argument: str) -> None:
        self._sample("topk", argument)

    def do_minp(self, argument: str) -> None:
        self._sample("minp", argument)

    def do_penalty(self, argument: str) -> None:
        self._sample("penalty", argument)

    def do_greedy(self, argument: str) -> None:
        self._sample("temp", "0")

    def _sample(self, word: str, argument: str) -> None:
        field, least, most, name, takes = LIMITS[word]
        try:
            value: float | None = None if argument.lower() == "auto" else int(argument) if word == "topk" else float(argument)
        except ValueError:
            value = math.nan
        if value is not None and not (least <= value <= most and math.isfinite(value)):
            self.toast(f"/{word} takes {takes}, or auto for the model's own.", "warning")
            return
        self.chat.sampling = replace(self.chat.sampling, **{field: value})  # type: ignore[arg-type]
        self.toast(f"{name} of the next replies: {'the model’s own' if value is None else f'{value:g}'}.")
        self.keep_settings()

    def do_max(self, argument: str) -> None:
        if argument.lower() == "off":
            self.chat.max_tokens = None
            self.toast("Replies may go to the end of the context.")
        elif argument.isdecimal() and 0 < int(argument) < 10**9:
            self.chat.max_tokens = int(argument)
            self.toast(f"Replies end after {counted(int(argument), 'token')}; /continue goes on.")
        else:
            self.toast("/max takes a number of tokens, or off.", "warning")
        self.keep_settings()

    def do_seed(self, argument: str) -> None:
        if argument.lower() == "off":
            self.chat.seed = None
            self.toast("Each reply gets a fresh random seed.")
        elif argument.isdecimal() and int(argument) < 2**63:
            self.chat.seed = int(argument)
            self.toast(f"Seed {argument}: the same questions get the same text, with any drafter.")
        else:
            self.toast("/seed takes a whole number below 2^63, or off.", "warning")
        self.keep_settings()

    def do_system(self, argument: str) -> None:
        """/system [TEXT|@FILE|off]"""
        if argument.lower() == "off":
            self.chat.system = None
            self.toast("No system prompt.")
        elif argument.startswith("@"):
            self.chat.system = attach(argument[1:]).text.strip() or None
            self.toast("The system prompt counts from the next reply on.")
        elif argument:
            self.chat.system = argument
            self.toast("The system prompt counts from the next reply on.")
        else:
            self.toast(f"System prompt: {self.chat.system}" if self.chat.system else "There is no system prompt.")
            return
        self.keep_settings()

    # --- presets -----------------------------------------------------------------------------------------------------

    async def do_preset(self, argument: str) -> None:
        """/preset [save NAME|use NAME|delete NAME]"""
        word, _, name = argument.partition(" ")
        name = one_line(name)[:60]
        store = await asyncio.to_thread(lambda: self.saver.store)
        saved = await asyncio.to_thread(store.presets)
        if not word or word == "list":
            await self._list_presets(saved)
        elif word not in ("save", "use", "delete") or not name:
            self.toast("/preset takes save NAME, use NAME, delete NAME, or nothing to list them.", "warning")
        elif word == "save":
            await asyncio.to_thread(store.save_preset, name, json.dumps(settings(self.chat), ensure_ascii=False))
            self.toast(f"Kept as preset {name}: system prompt, sampling, seed, draft length, longest reply.")
        elif (known := next((kept for kept in saved if kept.casefold() == name.casefold()), None)) is None:
            self.toast(f"There is no preset {name}.", "warning")
        elif word == "delete":
            await asyncio.to_thread(store.delete_preset, known)
            self.toast(f"Deleted: preset {known}.")
        else:
            apply(self.chat, json.loads(saved[known]))
            self.keep_settings()
            self.toast(f"Preset {known} counts from the next reply on.")
        self.preset_names = sorted(await asyncio.to_thread(store.presets))

    preset_names: list[str] = []  # noqa: RUF012 - replaced as a whole, for the completion

    async def _list_presets(self, saved: dict[str, str]) -> None:
        rows = [f"{name}\n  {_about(text)}" for name, text in saved.items()]
        text = "\n".join(rows) or "There is none yet."
        hint = "/preset use NAME takes one; /preset save NAME keeps the settings of this chat."
        await self.panel(Panel("Presets", text, hint, kind="list"), asked=True)


def _about(text: str) -> str:
    """What a preset sets, on one line."""
    saved = json.loads(text)
    sampling = saved.get("sampling") or {}
    parts = [f"{f.name} {sampling[f.name]:g}" for f in fields(Sampling) if isinstance(sampling.get(f.name), (int, float))]
    parts += [f"{name} {saved[name]}" for name in ("seed", "k", "max_tokens") if saved.get(name) is not None]
    parts += [f"system: {saved['system']}"] if saved.get("system") else []
    return one_line(" · ".join(parts), 200) or "the model's own settings"
