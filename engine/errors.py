"""The one exception that a person may see: a sentence, a hint, and numbers. No torch here."""

from __future__ import annotations

from collections.abc import Mapping


class EngineError(Exception):
    """A problem that the person can act on.

    `message` is one sentence, `hint` says what to do, `kind` is a stable word for programs (`unknown_name`, `too_long`,
    `memory`, `network`, `gated`, `disk_full`, `checksum`, `missing_weights`, `corrupt_weights`, `unsafe_weights`, `config`, `vocabulary`,
    `wrong_target`, `architecture`, `unwritable`, `internal`), `numbers` carries what a screen may want to show or compute with.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        kind: str = "error",
        detail: str = "",
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.kind = kind
        self.detail = detail
        self.numbers: dict[str, float] = dict(numbers or {})

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()
