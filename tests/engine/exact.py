"""Exact laws of shipped code: every random number it asks for becomes a choice, every choice a fraction.

`outcomes` runs a function once for each row of choices, depth first, and adds up fractions. Inside, the three functions of
`engine.speculation.noise` give objects that stand for numbers not yet known: a uniform number is an interval that halves only where it is
compared, and Gumbel noise is a uniform number through which any law can be drawn (by its cumulative sums). So the same noise asked twice
answers consistently, as the real noise does, noise of another index or stream is independent, and each draw has exactly its law. Code
that reuses a number which must be fresh is therefore seen. Probabilities are read back from float64 as the fractions they stand for.

A loop that draws until it likes the result (the residual of a law found on demand) would never end here: its second round is like its
first, so a run that begins one is dropped, and what the first round did at the same place is scaled up instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
import torch

from engine.speculation import noise

LIMIT = 10_000_000  # largest denominator that is looked for; float64 tells such fractions apart
ZERO, ONE = Fraction(0), Fraction(1)
UNIT = ZERO, ONE
MOST = 400_000  # rows of choices: more is a mistake in the test

Law = Mapping[int, Fraction]  # token id -> probability, only those above 0
Key = tuple[Hashable, ...]
Text = tuple[int, ...]


@lru_cache(1 << 16)
def fraction(x: float) -> Fraction:
    """The fraction that a float64 stands for."""
    found = Fraction(float(x)).limit_denominator(LIMIT)
    assert abs(float(found) - float(x)) < 1e-12, f"{x!r} is no small fraction"
    return found


@lru_cache(1 << 14)
def _law(logs: bytes) -> tuple[tuple[int, ...], tuple[Fraction, ...]]:
    """Places with a chance, and the edges between them on (0, 1), of float64 logarithms."""
    values = np.frombuffer(logs)
    assert np.isfinite(values.max())
    p = np.exp(values - values.max())
    weights = {int(i): fraction(p[i] / p.sum()) for i in p.nonzero()[0]}
    assert sum(weights.values()) == 1, f"a law that sums to {sum(weights.values())}"
    places = tuple(i for i in weights if weights[i] > 0)
    return places, tuple(accumulate(weights[i] for i in places[:-1]))


class Script:
    """Replays a row of choices and takes the first possible one when they run out; `weight` is the probability of the row."""

    def __init__(self, choices: list[int]) -> None:
        self.choices, self.at, self.weight = choices, 0, ONE
        self.possible: list[list[int]] = []

    def choose(self, weights: Sequence[Fraction]) -> int:
        possible = [i for i, w in enumerate(weights) if w > 0]
        if len(possible) == 1:
            self.weight *= weights[possible[0]]
            return possible[0]
        if self.at == len(self.choices):
            self.choices.append(possible[0])
        choice = self.choices[self.at]
        self.possible.append(possible)
        self.at += 1
        self.weight *= weights[choice]
        return choice


class Again(Exception):
    """A loop of draws began its second round."""


class Tape:
    """All random numbers of one run, each known only as far as it was looked at."""

    def __init__(self, script: Script, strict: bool = True) -> None:
        self.script, self.strict = script, strict
        self.loops: list[tuple[Text, Fraction]] = []  # where loops were entered, and with what weight
        self._known: dict[Key, tuple[Fraction, Fraction]] = {}
        self._kinds: dict[Key, str] = {}

    def round(self, number: int) -> None:
        """A loop of draws begins a round."""
        if number:
            raise Again
        self.loops.append((tuple(self.script.choices[: self.script.at]), self.script.weight))

    def _use(self, key: Key, which: Iterable[int], kind: str) -> None:
        """A uniform number and the noise of the token with its number are the same bits where index and stream are."""
        for number in which:
            same = self._kinds.setdefault((*key, number), kind) == kind
            assert same or not self.strict, f"{key}, {number} is used both as a uniform number and as the noise of a token"

    def part(self, key: Key, edges: Sequence[Fraction]) -> int:
        """Between which of the ascending `edges` the uniform number falls."""
        if len(key) == 4:
            self._use(key[:3], key[3:], "uniform")
        return self._cut(key, edges)

    def draw(self, key: Key, ids: Sequence[int], edges: Sequence[Fraction]) -> int:
        """Which of the parts between `edges` the noise of these ids chooses."""
        self._use(key, ids, "noise")
        return self._cut(key, edges)

    def _cut(self, key: Key, edges: Sequence[Fraction]) -> int:
        """Into which of the parts between ascending `edges` the number falls."""
        low, high = self._known.get(key, UNIT)
        bounds = [low, *(min(max(edge, low), high) for edge in edges), high]
        size = high - low
        part = self.script.choose([(b - a) / size if b > a else ZERO for a, b in pairwise(bounds)])
        self._known[key] = bounds[part], bounds[part + 1]
        return part


class Uniform:
    """shift + slope · u, for a number u in (0, 1) that is only ever compared."""

    __array_ufunc__ = None  # numpy leaves it to the methods below

    def __init__(self, tape: Tape, key: Key, slope: Fraction = ONE, shift: Fraction = ZERO) -> None:
        self.tape, self.key, self.slope, self.shift = tape, key, slope, shift

    def __mul__(self, by: float) -> Uniform:
        return Uniform(self.tape, self.key, self.slope * fraction(by), self.shift * fraction(by))

    def __add__(self, by: float) -> Uniform:
        return Uniform(self.tape, self.key, self.slope, self.shift + fraction(by))

    def __rsub__(self, of: float) -> Uniform:
        return Uniform(self.tape, self.key, -self.slope, fraction(of) - self.shift)

    __rmul__, __radd__ = __mul__, __add__

    def __lt__(self, x: float) -> bool:
        rest = fraction(x) - self.shift
        if self.slope == 0:
            return rest > 0
        below = self.tape.part(self.key, [rest / self.slope]) == 0
        return below if self.slope > 0 else not below

    def __ge__(self, x: float) -> bool:
        return not self < x

    __le__, __gt__ = __lt__, __ge__  # equality has probability 0

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> int:
        """Its place among ascending numbers."""
        assert func is np.searchsorted, f"a random number under {func}"
        assert args[1] is self
        return self.tape.part(self.key, [(fraction(x) - self.shift) / self.slope for x in args[0]])


class Noise:
    """Gumbel noise of token ids, to be added to logarithms of a law."""

    __array_ufunc__ = None  # numpy leaves additions to __radd__

    def __init__(self, tape: Tape, key: Key, ids: np.ndarray) -> None:
        self.tape, self.key, self.ids = tape, key, ids

    def __radd__(self, logs: Any) -> Noisy:
        return Noisy(self, torch.as_tensor(logs, dtype=torch.float64))

    __add__ = __radd__

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert getattr(func, "__name__", "") in ("add", "__add__", "__radd__"), f"noise under {func}"
        return next(a for a in args if isinstance(a, Noise)) + next(a for a in args if not isinstance(a, Noise))


class Noisy:
    """log p + g: its argmax is a draw from p."""

    def __init__(self, noise_: Noise, logs: torch.Tensor) -> None:
        self.noise, self.logs = noise_, logs

    def argmax(self, axis: int | None = None, dim: int = -1, out: None = None) -> torch.Tensor:
        """Place of the drawn token."""
        values, ids = self.logs.numpy(), self.noise.ids
        ascending = np.argsort(ids, kind="stable")  # by id, whatever the order at hand
        places, edges = _law(np.ascontiguousarray(values[ascending]).tobytes())
        return torch.tensor(int(ascending[places[self.noise.tape.draw(self.noise.key, ids.tolist(), edges)]]))

    def max(self, dim: int = -1) -> tuple[torch.Tensor, torch.Tensor]:
        """A finite number, and the place of the drawn token."""
        return torch.tensor(0.0), self.argmax()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is torch.argmax, f"noisy values under {func}"
        return args[0].argmax()


def outcomes(
    monkeypatch: pytest.MonkeyPatch, run: Callable[[], Hashable], confused: Mapping[int, int] | None = None
) -> dict[Any, Fraction]:
    """The exact law of what `run` returns. `confused`: streams that use another's numbers, for negative controls."""
    found: list[tuple[Any, Fraction, list[Text]]] = []
    entered: dict[Text, Fraction] = {}
    dropped: dict[Text, Fraction] = defaultdict(Fraction)
    choices: list[int] = []
    for _ in range(MOST):
        script = Script(choices)
        tape = Tape(script, strict=not confused)
        with monkeypatch.context() as patch:
            _replace(patch, tape, confused or {})
            try:
                found.append((run(), script.weight, [at for at, _ in tape.loops]))
            except Again:
                dropped[tape.loops[-1][0]] += script.weight
        entered |= dict(tape.loops)
        assert script.at == len(choices), "the run is not a function of its random numbers"
        while choices and script.possible[len(choices) - 1][-1] == choices[-1]:
            choices.pop()
        if not choices:
            break
        possible = script.possible[len(choices) - 1]
        choices[-1] = possible[possible.index(choices[-1]) + 1]
    else:
        raise AssertionError(f"more than {MOST} rows of choices")
    law: dict[Any, Fraction] = defaultdict(Fraction)
    for result, weight, loops in found:
        for at in loops:
            weight *= entered[at] / (entered[at] - dropped[at])
        law[result] += weight
    assert sum(law.values()) == 1
    return dict(law)


def _replace(patch: pytest.MonkeyPatch, tape: Tape, confused: Mapping[int, int]) -> None:
    def uniform(seed: int, index: int, stream: int = noise.ACCEPT, which: int = 0) -> Uniform:
        return Uniform(tape, (seed, index, confused[stream]) if stream in confused else (seed, index, stream, which))

    def key(seed: int, index: int, stream: int) -> Key:  # asked for by itself it is another seed; of the residual: of one round of a loop
        return (f"stream {stream}", seed, index)

    def gumbel_of(seed: Hashable, index: int, ids: np.ndarray, stream: int) -> Noise:
        if isinstance(seed, tuple) and seed[0] == f"stream {noise.RESIDUAL}":
            tape.round(seed[2])
        return Noise(tape, (seed, index, confused.get(stream, stream)), ids)

    def gumbel(seed: int, index: int, ids: np.ndarray, stream: int = noise.PICK) -> Noise:
        return gumbel_of(seed, index, ids, stream)

    def gumbel_all(seed: int, index: int, vocab_size: int, device: torch.device, stream: int = noise.PICK) -> Noise:
        return gumbel_of(seed, index, np.arange(vocab_size), stream)

    for name, function in (("key", key), ("uniform", uniform), ("gumbel", gumbel), ("gumbel_all", gumbel_all)):
        patch.setattr(noise, name, function)
    patch.setattr(torch.Tensor, "float", lambda self: self)  # float32 cannot tell the fractions apart


def summed(law: Mapping[tuple[Any, ...], Fraction]) -> dict[Any, Fraction]:
    """The law of the first part of the results."""
    out: dict[Any, Fraction] = defaultdict(Fraction)
    for key, weight in law.items():
        out[key[0]] += weight
    return dict(out)


def distance(a: Mapping[Any, Fraction], b: Mapping[Any, Fraction]) -> Fraction:
    """Total variation."""
    return sum((abs(a.get(key, ZERO) - b.get(key, ZERO)) for key in a.keys() | b.keys()), ZERO) / 2
