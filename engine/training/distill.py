"""Self-distillation: the target answers many prompts at once, and what its layers said on the way is kept.

There is no second pass: hidden states and chances come from the very steps that wrote the reply. Where the target's rows do not see each
other (`Target.exact`) a reply depends on its seed alone, not on what shares a pass with it or on when it is asked, so a killed run goes on
without a trace; elsewhere the last bits may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.decoder.target import LeanTarget
from engine.decoder.tokenizer import Tokenizer
from engine.protocol import Message
from engine.speculation.sampling import Filters, Picker, Row
from engine.training.lanes import FINAL, Lanes
from engine.training.seeds import Seed
from engine.training.shards import TEACHER, Text

TOP_K = 40  # of sampled replies
LONGEST_PROMPT = 512
LONGEST_REPLY = 320
LOOP_EVERY = 16  # tokens after which a reply is looked at for loops
LOOP_PERIOD, LOOP_TIMES = 32, 4  # a stretch of up to so many tokens that stands so many times in a row is a loop


@dataclass(slots=True)
class _Open:
    """A reply under way."""

    seed: Seed
    ids: list[int]
    start: int
    picker: Picker
    hidden: list[Tensor]  # (k, H) each
    top_ids: list[Tensor] = field(default_factory=list)  # (TEACHER,) each
    top_chances: list[Tensor] = field(default_factory=list)

    def text(self) -> Text:
        return Text(
            self.seed.number,
            torch.tensor(self.ids),
            self.start,
            torch.cat(self.hidden),
            torch.stack(self.top_ids),
            torch.stack(self.top_chances),
        )


class Distiller:
    """Answers prompts with `lanes` replies at a time."""

    def __init__(self, target: LeanTarget, tokenizer: Tokenizer, lanes: int = 32, noise: int = 0) -> None:
        self._target, self._tokenizer, self._noise = target, tokenizer, noise
        self._longest = min(LONGEST_PROMPT + LONGEST_REPLY, target.context)
        self._lanes = Lanes(target, lanes, self._longest)
        self._open: dict[int, _Open] = {}
        self._count = lanes
        self.tokens = 0  # tokens of replies so far, unfinished ones too

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return self._lanes.nbytes

    def run(self, seeds: Iterator[Seed], wanted: Callable[[], bool], done: Callable[[Text], None], cancelled: Callable[[], bool]) -> bool:
        """Answer prompts in order, as long as more are `wanted`, and hand over every finished reply. False when stopped before that.

        The replies that are open when nothing more is wanted are dropped, unless a new `run` goes on with them.
        """
        while wanted():
            if cancelled():
                return False
            for lane in range(self._count):
                if lane not in self._open and (seed := next(seeds, None)) is not None:
                    self._begin(lane, seed)
            if not self._open:
                return True
            self._step(done)
        return True

    def close(self) -> None:
        """Drop the tensors."""
        self._open.clear()
        del self._lanes

    def _begin(self, lane: int, seed: Seed) -> None:
        turns = [Message("system", seed.system)] if seed.system is not None else []
        prompt = self._tokenizer.render((*turns, Message("user", seed.prompt)))
        room = min(LONGEST_PROMPT, self._longest // 2)
        prompt = prompt if len(prompt) <= room else prompt[: room // 2] + prompt[len(prompt) - room // 2 :]  # both ends of a long one
        hidden = self._prefill(prompt)
        self._lanes.begin(lane)
        filters = Filters(seed.temperature, top_k=TOP_K if seed.temperature else 0)
        picker = Picker(filters, self._noise ^ (seed.number + 1))
        self._open[lane] = _Open(seed, list(prompt), len(prompt), picker, [hidden])

    def _prefill(self, prompt: list[int]) -> Tensor:
        """Read a prompt but its last token -> hidden states (P - 1, H). Always from its beginning, though prompts share theirs: reading
        the rest alone could round otherwise, and a reply would depend on which prompt came before."""
        weights, parts = self._target.model.weights, []
        self._target.truncate(0)
        self._target.needs = FINAL
        self._target.prefill(prompt[:-1], sink=lambda _, taps: parts.append(taps.clone()))
        return torch.cat([torch.empty((0, weights.config.hidden_size), dtype=weights.dtype, device=weights.device), *parts]).cpu()

    @torch.inference_mode()
    def _step(self, done: Callable[[Text], None]) -> None:
        """One more token for every open reply."""
        lanes = list(self._open)
        logits, hidden = self._lanes.step(lanes, [self._open[lane].ids[-1] for lane in lanes])
        scores, top_ids = logits.topk(min(TEACHER, logits.shape[-1]), dim=-1)
        chances = (scores - logits.logsumexp(-1, keepdim=True)).exp().float().cpu()
        top_ids, kept = top_ids.cpu(), hidden.cpu().clone()
        picks = self._picks(lanes, logits)
        for row, lane in enumerate(lanes):
            reply, token = self._open[lane], picks[row]
            reply.hidden.append(kept[row : row + 1])
            reply.top_ids.append(top_ids[row])
            reply.top_chances.append(chances[row])
            reply.ids.append(token)
            self.tokens += 1
            n = len(reply.ids) - reply.start
            ended = token in self._tokenizer.eos_ids or n >= reply.seed.max_tokens or len(reply.ids) >= self._longest - 1
            if ended or (n % LOOP_EVERY == 0 and looping(reply.ids[reply.start :])):
                del self._open[lane]
                self._lanes.end(lane)
                done(reply.text())

    def _picks(self, lanes: list[int], logits: Tensor) -> list[int]:
        """The next token of each lane; the greedy ones in one go."""
        greedy = [row for row, lane in enumerate(lanes) if self._open[lane].picker.filters.greedy]
        picks = dict(zip(greedy, Picker(Filters(), 0).pick(logits[greedy], [Row(0)] * len(greedy)), strict=True)) if greedy else {}
        for row, lane in enumerate(lanes):
            if row not in picks:
                reply = self._open[lane]
                (picks[row],) = reply.picker.pick(logits[row : row + 1], [Row(len(reply.ids) - reply.start)])
        return [picks[row] for row in range(len(lanes))]


def looping(ids: list[int]) -> bool:
    """Whether a text ends with the same stretch several times in a row: more of it would teach nothing."""
    for period in range(1, LOOP_PERIOD + 1):
        if len(ids) < period * LOOP_TIMES:
            return False
        tail = ids[-period * LOOP_TIMES :]
        if tail == tail[:period] * LOOP_TIMES and len(tail) >= LOOP_EVERY:
            return True
    return False
