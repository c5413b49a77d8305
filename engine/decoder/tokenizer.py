"""A model's tokenizer and chat template: text to ids and back, exactly, and the ids that end a turn.

A model without a template gets plain role labels and a note. Which token ends a turn is read off the template itself: the one that it
writes behind the assistant's words. Decoding never skips or tidies anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.decoder.source import AGAIN, missing
from engine.errors import EngineError
from engine.protocol import Message, Sampling

PLAIN_STOP = ("\nUser:", "\nAssistant:", "\nSystem:")
NO_TEMPLATE = "This model has no chat template, so plain role labels are used; it may only continue text instead of answering."
DEFAULTS = Sampling(temperature=0.7, top_p=0.95, top_k=0, min_p=0.0, repeat_penalty=1.0)
_LABELS = {"system": "System", "user": "User", "assistant": "Assistant"}
_MARK = "specchat-was-here"
_THOUGHT = "</think>"
# what GGUF files, which name one ending only, call the others
_ENDINGS = ("<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<eos>", "</s>")
# GGUF pre-tokenizer names whose rule is GPT-2's with every digit alone, which transformers' reader leaves out
_DIGITS_ALONE = ("smollm", "starcoder", "refact", "command-r")
_LLAMAS = ("llama", "mistral", "mixtral", None)  # model types whose bare `tokenizer.model` is read as Llama's; None: nothing says


@dataclass(slots=True)
class Tokenizer:
    """See the module. `stop` are strings that end a reply where no token does; `opens_thoughts`: the template begins it inside thoughts."""

    hf: Any
    name: str
    eos_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    opens_thoughts: bool = False
    _table: dict[int, str] | None = field(default=None, repr=False)

    @property
    def has_template(self) -> bool:
        """Whether the model, or its entry, brings a chat template."""
        return bool(self.hf.chat_template)

    def encode(self, text: str, special: bool) -> list[int]:
        """Ids of a text. `special`: put a begin-of-text id in front where the model wants one, and read special tokens in the text as
        such; without it the text is only words."""
        if not special:
            return self.hf(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        bos = self.hf.bos_token
        return self.hf(text, add_special_tokens=not (bos and text.startswith(bos)))["input_ids"]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included, nothing tidied."""
        backend = getattr(self.hf, "backend_tokenizer", None)
        if backend is not None:
            return backend.decode(list(ids), skip_special_tokens=False)
        return self.hf.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    @property
    def has_switch(self) -> bool:
        """Whether the chat template can be told to let the model think, or not."""
        return "enable_thinking" in str(self.hf.chat_template or "")

    def render(self, messages: Sequence[Message], carry_on: bool = False, think: bool | None = None) -> list[int]:
        """Ids of a chat, up to where the assistant speaks; with `carry_on` the last message is its unfinished reply."""
        if not carry_on:
            return self._ids(self.text(messages, think=think))
        assert messages
        assert messages[-1].role == "assistant"
        begun = messages[-1].content  # encoded apart, as it came: one id at a time behind the prompt
        if not self.has_template and begun and not begun[0].isspace():
            begun = " " + begun
        return self._ids(self.text(messages[:-1], think=think)) + self.hf(begun, add_special_tokens=False)["input_ids"]

    def text(self, messages: Sequence[Message], reply: bool = True, think: bool | None = None) -> str:
        """The chat as the model reads it; with `reply` the assistant's turn is opened, and `think` says whether with thoughts."""
        if not self.has_template:
            return _plain(messages, reply)
        turns = [{"role": m.role, "content": m.content} for m in messages]
        try:
            return self._render(turns, reply, think)
        except _TemplateTrouble as trouble:
            if turns and turns[0]["role"] == "system":  # some templates know no system role: its text opens the first turn instead
                first = turns[1]["content"] if len(turns) > 1 else ""
                merged = {"role": "user", "content": f"{turns[0]['content']}\n\n{first}".strip()}
                try:
                    return self._render([merged, *turns[2:]], reply, think)
                except _TemplateTrouble:
                    pass
            raise EngineError(
                f"The chat template of {self.name} cannot be used: {trouble}.",
                "Give another one as `template` in models.toml, or use --raw.",
                kind="config",
            ) from trouble

    def _render(self, turns: list[dict[str, str]], reply: bool, think: bool | None) -> str:
        from jinja2 import TemplateError

        try:
            switch = {} if think is None else {"enable_thinking": think}
            return self.hf.apply_chat_template(turns, tokenize=False, add_generation_prompt=reply, **switch)
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError, ImportError) as error:
            raise _TemplateTrouble(str(error).strip().rstrip(".").partition("\n")[0] or type(error).__name__) from error

    def _ids(self, text: str) -> list[int]:
        if not self.has_template:
            return self.encode(text, special=True)
        return self.hf(text, add_special_tokens=False)["input_ids"]  # a template writes its own begin-of-text

    def vocabulary_table(self) -> dict[int, str]:
        """Every id and its token, as the tokenizer spells it."""
        if self._table is None:
            self._table = {i: token for token, i in self.hf.get_vocab().items()}
        return self._table


class _TemplateTrouble(Exception):
    """What went wrong in a template, in its own words."""


def _plain(messages: Sequence[Message], reply: bool) -> str:
    lines = [f"{_LABELS.get(m.role, m.role.title())}:{'' if m.content[:1].isspace() else ' '}{m.content}\n" for m in messages]
    return "".join(lines) + ("Assistant:" if reply else "")


def load_tokenizer(path: Path, spec_template: str | None = None) -> Tokenizer:
    """The tokenizer of a folder or a `.gguf` file; `spec_template` replaces the chat template. Raises EngineError."""
    if path.is_dir() and not (path / "config.json").exists() and (found := sorted(path.glob("*.gguf"))):
        path = found[0]
    hf, endings = _from_gguf(path) if path.is_file() else _from_folder(path)
    if spec_template:
        hf.chat_template = spec_template
    tokenizer = Tokenizer(hf, path.stem if path.is_file() else path.name)
    tokenizer.eos_ids = frozenset(endings)
    if not tokenizer.has_template:
        tokenizer.stop, tokenizer.notes = PLAIN_STOP, (NO_TEMPLATE,)
    elif (end := _end_of_turn(tokenizer)) is not None:
        tokenizer.eos_ids |= {end}
    tokenizer.opens_thoughts = _opens_thoughts(tokenizer)
    return tokenizer


def _from_folder(path: Path) -> tuple[Any, set[int]]:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    pieces = _llama_pieces(path)
    kind = AutoTokenizer if pieces is None else PreTrainedTokenizerFast
    try:
        hf = kind.from_pretrained(str(path), local_files_only=True, **(pieces or {}))
    except (OSError, ValueError, KeyError, TypeError, ImportError, AttributeError, RuntimeError) as error:
        if not any((path / name).exists() for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")):
            raise missing(path, "The folder has no tokenizer") from error
        message = f"The tokenizer in {path.name} cannot be read."
        raise EngineError(message, AGAIN, kind="corrupt_weights", detail=str(error)) from error
    endings: set[int] = set()
    for name in ("generation_config.json", "config.json"):  # the second only where the first does not say
        read = _json(path / name)
        for part in (read, read.get("text_config") or {}):
            endings |= _numbers(part.get("eos_token_id"))
        if endings:
            break
    return hf, endings | _numbers(hf.eos_token_id)


def _llama_pieces(path: Path) -> dict[str, bool] | None:
    """How to read a folder that has Llama's SentencePiece file and no `tokenizer.json` (Vicuna); None for all others.

    transformers' class for it merges by id instead of by score (`a  b` falls apart otherwise than in training) and leaves out the
    begin-of-text id where no file says so; its reader for unnamed SentencePiece files goes by what the file itself says.
    """
    if (path / "tokenizer.json").exists() or not (path / "tokenizer.model").exists():
        return None
    said = _json(path / "tokenizer_config.json")
    named = said.get("tokenizer_class")
    if named not in ("LlamaTokenizer", "LlamaTokenizerFast", None):
        return None
    if named is None and _json(path / "config.json").get("model_type") not in _LLAMAS:
        return None
    return {"add_bos_token": said.get("add_bos_token", True), "legacy": said.get("legacy") is not False}


def _from_gguf(path: Path) -> tuple[Any, set[int]]:
    """Through transformers' converter, without its slow reading of the configuration: 0.3 to 3 s, as fast as a saved tokenizer.json."""
    from tokenizers import pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from engine.decoder.gguf import read_header

    metadata = read_header(path).metadata
    try:
        hf = PreTrainedTokenizerFast.from_pretrained(str(path.parent), gguf_file=path.name, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, ImportError, IndexError) as error:
        message = f"The tokenizer in {path.name} cannot be read."
        raise EngineError(message, "Use another conversion of the model.", kind="config", detail=str(error)) from error
    if metadata.get("tokenizer.ggml.model") == "gpt2" and metadata.get("tokenizer.ggml.pre") in _DIGITS_ALONE:
        hf.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        )
    endings = _numbers(hf.eos_token_id)
    for key in ("eos_token_id", "eot_token_id", "eom_token_id"):
        endings |= _numbers(metadata.get(f"tokenizer.ggml.{key}"))
    special = set(hf.all_special_tokens) | {t.content for t in hf.added_tokens_decoder.values() if t.special}
    known = {hf.convert_tokens_to_ids(token) for token in _ENDINGS if token in special}
    return hf, endings | {i for i in known if i < metadata.get("tokenizer.ggml.tokens", 0)}  # the converter adds some of its own behind


def _end_of_turn(tokenizer: Tokenizer) -> int | None:
    """The token that the template writes behind the assistant's words. Raises EngineError where the template is broken."""
    text = tokenizer.text([Message("user", "x"), Message("assistant", _MARK)], reply=False)
    _, found, tail = text.rpartition(_MARK)
    if not found or not tail.strip():
        return None
    first = tokenizer.hf(tail.lstrip(), add_special_tokens=False)["input_ids"][0]
    added = tokenizer.hf.added_tokens_decoder
    return first if first in added and added[first].special else None


def _opens_thoughts(tokenizer: Tokenizer) -> bool:
    """Whether the template ends with an open thought, as those of DeepSeek-R1 and QwQ do. Only where one token ends it: a tag in
    several pieces may as well be quoted."""
    if not tokenizer.has_template or len(tokenizer.hf(_THOUGHT, add_special_tokens=False)["input_ids"]) != 1:
        return False
    try:
        return tokenizer.text([Message("user", "x")]).rstrip().endswith("<think>")
    except EngineError:  # said where a person asks something
        return False


def sampling_defaults(path: Path) -> Sampling:
    """How the model's makers want it sampled, every field set; 0.7 / 0.95 / 0 / 0 / 1 where they do not say."""
    if path.is_file():
        from engine.decoder.gguf import read_header

        said = {k.removeprefix("general.sampling."): v for k, v in read_header(path).metadata.items() if k.startswith("general.sampling.")}
        said = {"temperature": said.get("temp"), "repetition_penalty": said.get("penalty_repeat"), **said}
    else:
        said = _json(path / "generation_config.json")
        if said.get("do_sample") is False:
            said = {}

    def pick(key: str, fallback: float | None, low: float, high: float) -> float:
        value = said.get(key)
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
        return float(value) if good else float(fallback or 0.0)  # type: ignore[arg-type]

    return Sampling(
        temperature=pick("temperature", DEFAULTS.temperature, 0.0, 100.0),
        top_p=pick("top_p", DEFAULTS.top_p, 1e-6, 1.0),
        top_k=int(pick("top_k", DEFAULTS.top_k, 0, 1 << 30)),
        min_p=pick("min_p", DEFAULTS.min_p, 0.0, 1.0),
        repeat_penalty=pick("repetition_penalty", DEFAULTS.repeat_penalty, 1e-3, 100.0),
    )


def difference(a: Tokenizer, b: Tokenizer) -> str | None:
    """None where both give every id that they share the same token; else a clause that names the first id that differs."""
    left, right = a.vocabulary_table(), b.vocabulary_table()
    for i in sorted(left.keys() & right.keys()):
        if left[i] != right[i]:
            return f"id {i} is {left[i]!r} for {a.name} and {right[i]!r} for {b.name}"
    if not left.keys() & right.keys():
        return f"{a.name} and {b.name} share no ids"
    return None


def _json(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _numbers(value: Any) -> set[int]:
    values: Iterable[Any] = value if isinstance(value, (list, tuple)) else [value]
    return {v for v in values if isinstance(v, int) and not isinstance(v, bool)}
