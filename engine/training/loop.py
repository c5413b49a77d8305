"""The training loop: batches, steps, trials on held-out topics, checkpoints every few minutes, an early end.

How many steps there are is fixed once: by epochs, or by the time that is left after the first steps were timed. From then on nothing
depends on the clock, so a resumed run does what an uninterrupted one would have done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from torch import Tensor

from engine.speculation.cost import Cost
from engine.training import batches, checkpoint, losses
from engine.training.judge import Score, judge, speedup
from engine.training.losses import Taught
from engine.training.network import Network
from engine.training.optimiser import PEAK, Optimiser
from engine.training.protocol import Judged, Learning, Progress
from engine.training.shards import Store
from engine.training.work import BEST, CHECKPOINT

BATCH = 1536  # padded tokens of a step
EPOCHS = 8  # when nobody says, and most of them when the time would allow more
MOST_EPOCHS = 24
TIMED = 8  # steps that tell what a step costs; the first of them does not count
TRIALS = 12  # on held-out topics, over the whole training
PATIENCE = 4  # trials without a better one
SAVE_EVERY_S = 180.0
SAY_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Data:
    """What is learned from, and by what it is judged."""

    store: Store
    numbers: list[int]  # ascending
    judge: Store
    ids: Tensor  # (S,) tokens that may be drafted
    columns: Tensor  # (V,)


@dataclass(frozen=True, slots=True)
class Terms:
    """How long, and what it costs to draft: for the expected speed-up."""

    epochs: int | None
    seconds: float | None  # for the loop
    seed: int
    verify: Cost
    draft: Cost
    batch: int = BATCH
    peak: float = PEAK


class Loop:
    """One training. `run` goes on from the checkpoint in `folder`, if there is one."""

    def __init__(self, network: Network, data: Data, taught: Taught, terms: Terms, folder: Path, emit: Callable[[Progress], None]) -> None:
        self._network, self._data, self._taught, self._terms, self._emit = network, data, taught, terms, emit
        self._file, self._best = folder / CHECKPOINT, folder / BEST
        self._optimiser = Optimiser(network, 1, terms.peak)
        self._per_epoch = len(self._order(0))
        self.progress = checkpoint.restore_state(self._file, network, self._optimiser) or checkpoint.Progress()
        if not self.progress.steps and terms.seconds is None:
            self._fix((terms.epochs or EPOCHS) * self._per_epoch)

    def run(self, cancelled: Callable[[], bool]) -> bool:
        """Train; afterwards the network has its best weights. False when stopped before the end."""
        progress = self.progress
        begun = saved = said = monotonic()
        first, loss, count, tokens = progress.step, 0.0, 0, 0
        durations: list[float] = []
        source = self._batches(progress.step)
        while not progress.over:
            if cancelled():
                self.save()
                return False
            started = monotonic()
            numbers = next(source)
            loss += self._step(numbers)
            count, tokens = count + 1, tokens + sum(self._data.store.replied(number) for number in numbers)
            progress.step += 1
            durations.append(monotonic() - started)
            if not progress.steps and len(durations) >= TIMED:
                self._time(durations, begun)
                self.save()
            now = monotonic()
            if progress.steps and progress.step >= progress.steps:
                progress.over = True
            if progress.steps and (progress.over or progress.step % self._every == 0):
                self._judge()
                self.save()
                saved = now
            if now - said >= SAY_EVERY_S or progress.over:
                left = (progress.steps - progress.step) * (now - begun) / max(progress.step - first, 1)
                self._emit(
                    Learning(
                        progress.step,
                        progress.steps,
                        self.epochs,
                        loss / count,
                        self._optimiser.rate(progress.step - 1),
                        tokens / (now - said),
                        max(left, 0.0),
                    )
                )
                said, loss, count, tokens = now, 0.0, 0, 0
            if now - saved >= SAVE_EVERY_S:
                self.save()
                saved = now
        if self._best.exists():
            checkpoint.restore_weights(self._best, self._network)
        return True

    def save(self) -> None:
        """Write a checkpoint."""
        checkpoint.save_state(self._file, self._network, self._optimiser, self.progress)

    def score(self) -> Score:
        """How good the heads are now on the topics that they are judged by."""
        data = self._data
        return judge(self._network, data.judge, data.judge.numbers, data.ids, data.columns, self._taught)

    @property
    def epochs(self) -> float:
        """Passes over the data so far."""
        return self.progress.step / self._per_epoch

    @property
    def _every(self) -> int:
        """Steps from one trial to the next."""
        return max(1, round(self.progress.steps / TRIALS))

    def _step(self, numbers: list[int]) -> float:
        data, device = self._data, self._taught.rows.device
        batch = batches.build([data.store.read(number) for number in numbers], self._network.drafted, data.columns).to(device)
        loss = losses.backward(self._network, batch, self._taught)
        if loss == loss and loss < 1e9:  # no number, or one out of bounds, teaches nothing
            self._optimiser.step(self.progress.step)
        else:
            self._network.zero_grad(set_to_none=True)
        return loss

    def _time(self, durations: list[float], begun: float) -> None:
        """Fix the number of steps by the time that is left; trials take time, too."""
        assert self._terms.seconds is not None
        each = sum(durations[1:]) / (len(durations) - 1)
        before = monotonic()
        self._judge()
        trials = TRIALS * (monotonic() - before)
        left = self._terms.seconds - (monotonic() - begun) - trials
        steps = self.progress.step + max(int(left / each), 1)
        self._fix(min(steps, (self._terms.epochs or MOST_EPOCHS) * self._per_epoch))

    def _fix(self, steps: int) -> None:
        self.progress.steps = self._optimiser.steps = max(steps, 1)

    def _judge(self) -> None:
        progress, score = self.progress, self.score()
        best = score.tau > progress.best_tau
        if best:
            progress.best_tau, progress.best_step, progress.worse = score.tau, progress.step, 0
            checkpoint.save_weights(self._best, self._network)
        else:
            progress.worse += 1
        progress.over |= progress.worse >= PATIENCE
        gain = speedup(score.kept, self._terms.verify, self._terms.draft)
        self._emit(Judged(progress.step, score.tau, score.agreement, gain, best, max(PATIENCE - progress.worse, 0)))

    def _order(self, epoch: int) -> list[list[int]]:
        data = self._data
        return batches.order(data.numbers, data.store.length, self._terms.batch, self._terms.seed, epoch)

    def _batches(self, step: int) -> Iterator[list[int]]:
        """The batches from a step on, without end. Epochs differ a little in how many they have."""
        epoch = 0
        while True:
            order = self._order(epoch)
            if step < len(order):
                yield from order[step:]
                step = 0
            else:
                step -= len(order)
            epoch += 1
