"""The settings: one row each, changed with the arrow keys or by writing a value, kept in config.toml and in force as the row says."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.text import Text
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Input, Static

from app.commands import bindings
from app.screens.place import PlaceScreen
from app.settings import SETTINGS, Setting, Value, shown
from app.terminal import for_terminal, one_line
from app.widgets.rows import Rows
from engine.errors import EngineError

Change = Callable[[Setting, Value | None], None]
TITLES = {"chat": "CHAT", "model": "MODEL", "screen": "SCREEN"}


class SettingsScreen(PlaceScreen[bool]):
    """`change` keeps a value and puts it in force; it raises EngineError when that cannot be done. Gives True for "load again"."""

    WHERE = "settings"
    BINDINGS = bindings("settings")
    DEFAULT_CSS = """
    SettingsScreen DataTable { height: 1fr; }
    SettingsScreen Input { height: 1; border: none; padding: 0 1; background: $surface; display: none; }
    SettingsScreen Input.-open { display: block; }
    SettingsScreen #setting { height: auto; max-height: 5; padding: 0 1; border-top: solid $panel-lighten-2; }
    """

    def __init__(self, values: Mapping[str, Value], change: Change, themes: tuple[str, ...], *, can_load: bool) -> None:
        super().__init__("Settings", "kept in config.toml")
        self._values = dict(values)
        self._change = change
        self._themes = themes
        self._can_load = can_load
        self._table = Rows()
        self._input = Input(id="setting-input")
        self._about = Static(id="setting")

    def body(self) -> ComposeResult:
        yield self._table
        yield self._input
        yield self._about

    def on_mount(self) -> None:
        super().on_mount()
        self.show_keys(() if self._can_load else ("set_reload",))
        for heading in ("SETTING", "VALUE", "IN FORCE"):
            self._table.add_column(heading, key=heading)
        for setting in SETTINGS:
            self._table.add_row(*self._cells(setting), key=setting.path)
        self._table.focus()

    def _cells(self, setting: Setting) -> tuple[Text, ...]:
        first = next(s for s in SETTINGS if s.table == setting.table) is setting
        value = self._values.get(setting.path)
        title = f"{TITLES[setting.table] if first else '':<7} {setting.name}"
        width = max(12, self.size.width - 50)
        return (
            Text(title, no_wrap=True),
            Text(one_line(shown(setting, value), width), style="dim" if value is None else "bold", no_wrap=True),
            Text(setting.counts, style="dim", no_wrap=True),
        )

    @property
    def setting(self) -> Setting:
        """The row under the cursor."""
        return SETTINGS[self._table.cursor_row]

    def on_data_table_row_highlighted(self) -> None:
        self._explain()

    def _explain(self, problem: str = "") -> None:
        setting = self.setting
        choices = self._choices(setting)
        lines = [setting.help, f"One of: {', '.join(choices)}" if choices else "", f"Default: {setting.unset}"]
        parts = [Content(for_terminal(line)) for line in lines if line]
        if problem:
            parts = [Content.styled(f"! {for_terminal(problem)}", "bold $text-error"), *parts]
        self._about.update(Content("\n").join(parts))

    def _choices(self, setting: Setting) -> tuple[str, ...]:
        return self._themes if setting.path == "screen.theme" else setting.choices

    def put(self, setting: Setting, value: Value | None) -> None:
        """Keep a value and show it."""
        try:
            self._change(setting, value)
        except EngineError as error:
            self._explain(str(error))
            return
        if value is None:
            self._values.pop(setting.path, None)
        else:
            self._values[setting.path] = value
        self._table.update_cell(setting.path, "VALUE", self._cells(setting)[1], update_width=True)
        self._explain()

    def _step(self, by: int) -> None:
        setting, value = self.setting, self._values.get(self.setting.path)
        choices: tuple[Value, ...] = (False, True) if setting.kind == "flag" else self._choices(setting)
        if choices:
            at = choices.index(value) + by if value in choices else (0 if by > 0 else len(choices) - 1)
            self.put(setting, choices[at % len(choices)])
        elif setting.kind in ("number", "whole"):
            now = setting.start if value is None else float(value) + by * setting.step
            now = round(min(setting.most, max(setting.least, now)), 4)
            self.put(setting, int(now) if setting.kind == "whole" else now)
        else:
            self._write()

    def _write(self) -> None:
        value = self._values.get(self.setting.path)
        self._input.value = "" if value is None else shown(self.setting, value)
        self._input.placeholder = f"{self.setting.name}: {self.setting.unset}"
        self._input.add_class("-open")
        self._input.focus()

    def _close_input(self) -> None:
        self._input.remove_class("-open")
        self._table.focus()

    # --- keys --------------------------------------------------------------------------------------------------------

    def on_data_table_row_selected(self) -> None:
        """Enter or a click: write the value; one of few is simply the next."""
        if self.setting.kind == "flag" or self._choices(self.setting):
            self._step(1)
        else:
            self._write()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """A value was written; nothing means the default."""
        text = event.value.strip()
        try:
            value = self.setting.read(text) if text else None
        except ValueError as error:
            self._explain(str(error))
            return
        self._close_input()
        self.put(self.setting, value)

    def do_set_previous(self, argument: str) -> None:
        self._step(-1)

    def do_set_next(self, argument: str) -> None:
        self._step(1)

    def do_set_default(self, argument: str) -> None:
        self.put(self.setting, None)

    def do_set_reload(self, argument: str) -> None:
        if self._can_load:
            self.dismiss(True)

    def do_set_back(self, argument: str) -> None:
        if self._input.has_class("-open"):
            self._close_input()
        else:
            self.dismiss(False)
