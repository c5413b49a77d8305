"""Settings of the program in the chat: what is kept in config.toml is in force from the start, and what is changed at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.screens.chat_pickers import ChatPickers
from app.settings import BY_PATH, Setting, Value
from engine.errors import EngineError

THEME = "textual-dark"
SAMPLING = {"temp": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "repeat_penalty": "repeat_penalty"}
DEFAULTS: dict[str, Value] = {"verify": "match", "strict": False, "method": "auto"}


class ChatConfig(ChatPickers):
    """From settings to the chat."""

    async def do_settings(self, argument: str) -> None:
        """The screen of settings."""
        from app.screens.settings import SettingsScreen

        themes = tuple(sorted(self.app.available_themes))
        can_load = self.loaded.target is not None and not self.situation.generating
        screen = SettingsScreen(self.surroundings.config().values, self.change, themes, can_load=can_load)
        again = await self.app.push_screen_wait(screen)
        self.prompt.focus()
        if again and self.loaded.target is not None:
            await self.open_target(self.loaded.target, self.loaded.drafter)

    def do_theme(self, argument: str) -> None:
        """Colours: by name, or from the list."""
        if not argument:
            self.app.action_change_theme()
        elif argument in self.app.available_themes:
            self.change(BY_PATH["screen.theme"], argument)
        else:
            self.toast(f"There is no theme {argument}; /theme alone lists them.", "warning")

    def begin_settings(self) -> None:
        """What is kept for the screen, once the screen is there."""
        config = self.surroundings.config()
        theme = config.get("screen.theme")
        if theme is not None and theme not in self.app.available_themes:
            self.toast(f"config.toml: there is no theme {theme}.", "warning")
        elif theme is not None:
            self.app.theme = str(theme)
        self.options = replace(self.options, notes=(*self.options.notes, *config.notes))
        self.stats = str(config.get("screen.numbers") or "auto")
        self.transcript.mode = str(config.get("screen.follow") or "end")
        self.tokens_on = bool(config.get("screen.tokens"))
        self.legend.set_class(self.tokens_on, "-on")
        self.place_stats()
        self.app.theme_changed_signal.subscribe(self, self._theme_changed)

    def _theme_changed(self, theme: object) -> None:
        """Keep a theme that was chosen in the palette."""
        if self.app.theme != (self.surroundings.config().get("screen.theme") or THEME):
            try:
                self.surroundings.keep("screen.theme", self.app.theme)
            except EngineError as error:
                self.toast(str(error), "warning")

    def change(self, setting: Setting, value: Value | None) -> None:
        """Keep one setting and put it in force. EngineError when it cannot be kept; nothing has changed then."""
        self.surroundings.keep(setting.path, value)
        if setting.table == "chat":
            self._change_chat(setting.name, value)
        elif setting.path == "model.method":
            self.loaded.method = str(value or DEFAULTS["method"])
        elif setting.table == "model":
            missing = None if setting.name == "context" else "auto"
            wish: dict[str, Any] = {setting.name: missing if value is None else value}
            self.loaded.options = replace(self.loaded.options, **wish)
        elif setting.path == "screen.theme":
            self.app.theme = str(value or THEME)
        elif setting.path == "screen.numbers":
            self.stats = str(value or "auto")
            self.place_stats()
        elif setting.path == "screen.follow":
            self.transcript.mode = str(value or "end")
        elif setting.path == "screen.tokens":
            self.run_worker(self.do_tokens("on" if value else "off"), group="command")

    def _change_chat(self, name: str, value: Value | None) -> None:
        if name in SAMPLING:
            given: dict[str, Any] = {SAMPLING[name]: value}
            self.chat.sampling = replace(self.chat.sampling, **given)
            self.options = replace(self.options, sampling=replace(self.options.sampling, **given))
        elif name in DEFAULTS:
            option: dict[str, Any] = {name: DEFAULTS[name] if value is None else value}
            self.options = replace(self.options, **option)
        else:
            setattr(self.chat, name, value)
            new: dict[str, Any] = {name: value}
            self.options = replace(self.options, **new)
        self.chat.use(self.options)
        self.keep_settings()
