"""The step inspector: what each step of a reply drafted, how much of it was kept, what the target said, and how long it took."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import DataTable, Static

from app.commands import bindings
from app.record import Record, own_origin
from app.screens.place import PlaceScreen
from app.terminal import for_terminal, one_line
from app.widgets.rows import Rows
from app.widgets.token_view import LINE_END, look
from engine.protocol import Segment, Step
from engine.words import counted

WHERE_HELP = {
    "correction": "the target chose another token than the draft",
    "bonus": "the draft was right to its end, so the target's own token came on top",
    "plain": "nothing was drafted",
}
HEADINGS = ("#", "text", "kept", "own token", "draft ms", "verify ms", "other ms", "tok/s")


class StepsScreen(PlaceScreen[None]):
    """One row per step; the chosen one is explained below the table."""

    WHERE = "steps"
    BINDINGS = bindings("steps")
    DEFAULT_CSS = """
    StepsScreen DataTable { height: 1fr; }
    StepsScreen #step { height: auto; max-height: 7; padding: 0 1; border-top: solid $panel-lighten-2; }
    """

    def __init__(self, record: Record, target: str, which: str = "the last reply") -> None:
        tally = record.tally()
        fact = f"{counted(tally.steps, 'step')} · {counted(tally.emitted, 'token')} · τ {tally.tau:.2f}"
        super().__init__(f"Steps of {which} · {target}", fact)
        self._record = record
        self._pieces = pieces_by_step(record)
        self._only_wrong = False
        self._table = Rows()
        self._about = Static(id="step")

    def body(self) -> ComposeResult:
        yield self._table
        yield self._about

    def on_mount(self) -> None:
        super().on_mount()
        for heading in HEADINGS:
            self._table.add_column(heading, key=heading)
        self._fill()
        self._table.focus()

    def on_resize(self) -> None:
        self._fill()

    @property
    def shown(self) -> list[Step]:
        """The steps in the table."""
        steps = self._record.steps
        if not self._only_wrong:
            return steps
        return [step for step in steps if own_origin(step, self._pieces.get(step.index, [])) == "correction"]

    def _fill(self) -> None:
        if not self._table.columns:
            return
        row = self._table.cursor_row
        self._table.clear()
        room = max(12, self.size.width - 62)
        for step in self.shown:
            self._table.add_row(*self._row(step, room), key=str(step.index))
        self._table.move_cursor(row=min(row, max(0, len(self.shown) - 1)), animate=False)
        if not self.shown:
            text = "No draft was wrong in this reply." if self._only_wrong else "No steps are known of this reply."
            self._about.update(Content(text))

    def _row(self, step: Step, room: int) -> list[Text]:
        variables = self.app.get_css_variables()
        pieces = self._pieces.get(step.index, [])
        words = Text(no_wrap=True, end="")
        for piece in pieces:
            colour, _, cue = look(piece.origin, piece.position).partition(" ")
            words.append(visible(piece), f"{variables.get(colour[1:], '')} {cue}".strip())
        words.truncate(room, overflow="ellipsis")
        whole = step.draft_s + step.verify_s + step.bridge_s + step.other_s
        own = next((visible(piece) for piece in reversed(pieces) if piece.position == 0), "")
        kept = Text(f"{step.accepted}/{step.drafted}" if step.drafted else "-")
        if dropped := step.nodes - step.accepted:
            kept.append(f" ~{dropped}~", f"{variables['token-rejected']} strike")
        rate = f"{step.emitted / whole:.0f}" if whole > 0 else ""
        times = (step.draft_s, step.verify_s, step.bridge_s + step.other_s)
        return [
            Text(str(step.index)),
            words,
            kept,
            Text(one_line(own, 14)),
            *(Text(ms(time_s), justify="right") for time_s in times),
            Text(rate),
        ]

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Explain the step under the cursor."""
        if event.row_key.value is not None and event.row_key.value.isdecimal():
            self._about.update(explain(self._record.steps[int(event.row_key.value) - 1], self._pieces.get(int(event.row_key.value), [])))

    def do_steps_rejected(self, argument: str) -> None:
        self._only_wrong = not self._only_wrong
        self._fill()

    def do_steps_copy(self, argument: str) -> None:
        self.app.copy_to_clipboard(table(self._record))
        self.toast("The steps were sent to the terminal's clipboard.")

    def do_steps_back(self, argument: str) -> None:
        self.dismiss(None)


def pieces_by_step(record: Record) -> dict[int, list[Segment]]:
    """The pieces by the step that completed them."""
    found: dict[int, list[Segment]] = {}
    for segment in record.segments:
        found.setdefault(segment.step, []).append(segment)
    return found


def visible(piece: Segment) -> str:
    """A piece on one line with its blanks visible; `*` marks one that several tokens make."""
    text = for_terminal(piece.text).replace("\n", LINE_END).replace("\t", "→").replace(" ", "␣")
    return f"{text}*" if len(piece.token_ids) > 1 else text


def explain(step: Step, pieces: list[Segment]) -> Content:
    """What happened in a step, in words."""
    own = own_origin(step, pieces)
    dropped = step.nodes - step.accepted
    lines = [f"Step {step.index}: drafted {step.drafted}, kept {step.accepted}, emitted {step.emitted}"]
    if step.nodes > step.drafted:
        lines[0] += f"; a tree of {counted(step.nodes, 'node')}, {step.drafted} deep"
    if dropped:
        lines[0] += f"; {dropped} dropped" + (f" from position {step.accepted + 1} on" if step.nodes == step.drafted else "")
    lines.append(f"Target's own token: {own} ({WHERE_HELP[own]})" if step.emitted > step.accepted else "The reply ended inside the draft")
    times = [("draft", step.draft_s), ("verify", step.verify_s), ("bridge", step.bridge_s), ("other", step.other_s)]
    lines.append("Time: " + "  ".join(f"{name} {ms(seconds)} ms" for name, seconds in times if seconds or name != "bridge"))
    if any(len(piece.token_ids) > 1 for piece in pieces):
        lines.append("* one piece of text that several tokens make; it has the class of the last of them")
    if not pieces:
        lines.append("No text yet: its tokens wait for the rest of a character")
    if step.note:
        lines.append(one_line(step.note, 200))
    return Content("\n".join(lines))


def ms(seconds: float) -> str:
    """Milliseconds."""
    return f"{seconds * 1000:.1f}"


def table(record: Record) -> str:
    """All steps as tab-separated values, texts exact but for tabs and line ends."""
    pieces = pieces_by_step(record)
    rows = ["step\tdrafted\taccepted\temitted\tnodes\tdraft_s\tverify_s\tbridge_s\tother_s\tat_s\ttext"]
    for s in record.steps:
        text = "".join(p.text for p in pieces.get(s.index, [])).replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
        numbers = (s.draft_s, s.verify_s, s.bridge_s, s.other_s, s.at_s)
        head = f"{s.index}\t{s.drafted}\t{s.accepted}\t{s.emitted}\t{s.nodes}"
        rows.append("\t".join([head, *(f"{n:.6f}" for n in numbers), text]))
    return "\n".join(rows) + "\n"
