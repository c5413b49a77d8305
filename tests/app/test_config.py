"""config.toml: read with its mistakes told, written line by line, never overwritten when it is broken."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config import Config, edited, load_config, save
from app.options import Options
from app.settings import BY_PATH, SETTINGS, Setting, shown
from engine.errors import EngineError

WRITTEN = """# mine
[chat]
temp = 0.5  # not too wild
seed = 7

[keys]
retry = "ctrl+y"

[model]   # the machine
quant = "int8"
"""


def test_read_everything(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(WRITTEN)
    config = load_config(file)
    assert config == Config({"chat.temp": 0.5, "chat.seed": 7, "model.quant": "int8"}, {"retry": "ctrl+y"})
    assert load_config(tmp_path / "none.toml") == Config()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[chat]\ntmep = 1", "line 2: chat.tmep is not known. Did you mean temp?"),
        ("[chat]\ntemp = 'hot'", "line 2: chat.temp must be a number."),
        ("[chat]\n\ntop_p = 2", "line 3: chat.top_p must be from 0.01 to 1."),
        ("[model]\nquant = 'q4'", "line 2: model.quant must be one of auto, nf4"),
        ("[keys]\nretyr = 'x'", "line 2: keys.retyr is no command. Did you mean retry?"),
        ("[keys]\nretry = 3", "line 2: keys.retry must be keys in quotes"),
        ("[chta]\ntemp = 1", "line 1: chta is not known. Did you mean chat?"),
        ("temp = 1", "line 1: temp is not known."),
        ("[chat]\nstrict = 1", "line 2: chat.strict must be true or false."),
        ("[chat]\nk = true", "line 2: chat.k must be a whole number."),
    ],
)
def test_mistakes_are_told_by_line_and_cost_only_themselves(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"{line}\n\n[screen]\nnumbers = 'off'\n")
    config = load_config(file)
    assert dict(config.values) == {"screen.numbers": "off"}
    assert len(config.notes) == 1
    assert says in config.notes[0]
    assert str(file) in config.notes[0]


def test_a_broken_file_counts_for_nothing_and_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    for broken in (b"[chat]\ntemp = \n", b"\xff\xfe"):
        file.write_bytes(broken)
        config = load_config(file)
        assert config.values == {}
        assert "The defaults count" in config.notes[0]
        with pytest.raises(EngineError):
            save("chat.temp", 1.0, file)
        assert file.read_bytes() == broken


def test_change_add_take_out_keeping_comments(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(WRITTEN)
    for path, value in (("chat.temp", 0.9), ("chat.k", 4), ("model.quant", None), ("screen.theme", "nord"), ("chat.strict", True)):
        save(path, value, file)
    text = file.read_text()
    assert "temp = 0.9  # not too wild" in text
    assert "[model]   # the machine" in text
    assert text.startswith("# mine\n")
    config = load_config(file)
    assert dict(config.values) == {"chat.temp": 0.9, "chat.seed": 7, "chat.k": 4, "screen.theme": "nord", "chat.strict": True}
    assert dict(config.keys) == {"retry": "ctrl+y"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


def test_a_form_that_cannot_be_edited_is_said(tmp_path: Path) -> None:
    """Dotted keys and inline tables are fine to read, but not changed by guessing."""
    file = tmp_path / "config.toml"
    for form in ("chat.temp = 0.5\n", "chat = {temp = 0.5}\n"):
        file.write_text(form)
        assert load_config(file).get("chat.temp") == 0.5
        with pytest.raises(EngineError, match="as it is written there"):
            save("chat.temp", 0.6, file)
        assert file.read_text() == form


NAMES = st.sampled_from([setting.path for setting in SETTINGS])
VALUES = st.one_of(st.none(), st.booleans(), st.integers(0, 2**62), st.floats(0, 1e6), st.text(max_size=20).filter(str.isprintable))


@given(st.lists(st.tuples(NAMES, VALUES), max_size=8))
def test_edits_are_what_was_meant(edits: list[tuple[str, object]]) -> None:
    """Whatever is set and unset in whatever order, the file says exactly that."""
    text, wanted = WRITTEN, tomllib.loads(WRITTEN)
    for path, value in edits:
        table, name = path.split(".")
        text = edited(text, table, name, value)  # type: ignore[arg-type]
        entries = wanted.setdefault(table, {})
        entries.pop(name, None)
        if value is not None:
            entries[name] = value
    assert {k: v for k, v in tomllib.loads(text).items() if v} == {k: v for k, v in wanted.items() if v}


def test_the_command_line_goes_before() -> None:
    config = Config({"chat.temp": 0.5, "chat.k": 3, "model.quant": "int8", "screen.theme": "nord", "chat.system": "Be kind."})
    options = config.over(Options(temp=0.1))
    assert (options.temp, options.k, options.quant, options.system) == (0.1, 3, "int8", "Be kind.")
    saved_chat = config.over(Options(), chat=False)
    assert (saved_chat.temp, saved_chat.quant) == (None, "int8")


def test_every_setting_of_chat_and_model_is_an_option() -> None:
    for setting in SETTINGS:
        if setting.table != "screen":
            assert hasattr(Options(), setting.name)
        assert setting.kind != "choice" or setting.choices or setting.path == "screen.theme"
        assert setting.kind not in ("number", "whole") or not setting.problem(
            (setting.kind == "whole" and int(setting.start)) or setting.start
        )


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("chat.temp", "0.5", 0.5),
        ("chat.k", " 4 ", 4),
        ("chat.strict", "on", True),
        ("model.quant", "nf4", "nf4"),
        ("chat.system", "Hi.", "Hi."),
    ],
)
def test_reading_what_was_written(path: str, text: str, value: object) -> None:
    setting = BY_PATH[path]
    assert setting.read(text) == value
    assert setting.read(shown(setting, setting.read(text))) == value


@pytest.mark.parametrize(
    ("path", "text"), [("chat.temp", "warm"), ("chat.temp", "nan"), ("chat.k", "65"), ("chat.k", "1.5"), ("model.quant", "q4")]
)
def test_nonsense_is_a_sentence(path: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"must be .*\."):
        BY_PATH[path].read(text)


def test_values_for_people() -> None:
    flag: Setting = BY_PATH["chat.strict"]
    assert [shown(flag, value) for value in (None, True, False)] == ["off", "on", "off"]
    assert shown(BY_PATH["chat.temp"], 0.5) == "0.5"
