"""How a draft tree grows: along a fixed list of ranks (Medusa, Hydra, EAGLE-1) or to where the head is sure (EAGLE-2/3).

Scores are sums of log chances in float32, ordered by (score, depth, place): a child that ties with its parent stands behind it, so the
best n nodes are always a tree. There is no padding anywhere. Of what the references would draft, only the part that can become one of
the best `budget` nodes is worked out; the nodes are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from engine.errors import EngineError

Path = tuple[int, ...]
# depth of the rows' tokens (0 = the root), row of each one's parent in the call before, their tokens -> logits, one row or one a token
Expand = Callable[[int, list[int], list[int]], Tensor]
# logits, the drafted tokens on the path of each row, how many -> ids (M, k) and log chances (M, k) float32, best first; id -1 = none
Choose = Callable[[Tensor, list[Path], int], tuple[np.ndarray, np.ndarray]]
MOST_NODES = 64


@dataclass(slots=True)
class Tree:
    """Nodes in the order of the reference implementations: shallow first. Parents are rows, 0 = the root, node i = row i + 1."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    scores: list[np.float32] = field(default_factory=list)

    def add(self, token: int, parent: int, score: np.float32) -> int:
        """A node below row `parent`; returns its row."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(1 + (self.depths[parent - 1] if parent else 0))
        self.scores.append(score)
        return len(self.tokens)

    def ranking(self) -> list[int]:
        """Indices of the nodes, the most trusted first."""
        order: list[int] = np.lexsort((np.asarray(self.depths), -np.asarray(self.scores, np.float32))).tolist()  # stable: by place last
        return order

    def best(self, n: int) -> Tree:
        """The n most trusted nodes, in the same order as here."""
        return self.part(sorted(self.ranking()[:n]))

    def ranked(self) -> Tree:
        """The same tree, the most trusted nodes first: its first n nodes are the best tree of n nodes."""
        return self.part(self.ranking())

    def part(self, nodes: list[int]) -> Tree:
        """These nodes in this order; each one's parent must be among them, before it."""
        rows = {-1: 0} | {node: row for row, node in enumerate(nodes, start=1)}
        return Tree(
            [self.tokens[i] for i in nodes],
            [rows[self.parents[i] - 1] for i in nodes],
            [self.depths[i] for i in nodes],
            [self.scores[i] for i in nodes],
        )

    def path(self, row: int) -> Path:
        """Tokens from the root's child down to this row."""
        tokens: list[int] = []
        while row:
            tokens.append(self.tokens[row - 1])
            row = self.parents[row - 1]
        return tuple(reversed(tokens))


def candidates(tree: Tree, rows: list[int], logits: Tensor, choose: Choose, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Children of these rows (M, k). Logits of a single row count for all: a head that does not look at the path."""
    if logits.shape[0] == len(rows):
        return choose(logits, [tree.path(row) for row in rows], k)
    ids, chances = choose(logits, [tree.path(rows[0])], k)
    return np.repeat(ids, len(rows), 0), np.repeat(chances, len(rows), 0)


def checked(choices: Sequence[Sequence[int]], depth: int) -> tuple[Path, ...]:
    """A fixed tree as a list of paths of ranks, the most trusted first. EngineError when it is none, or deeper than the heads."""
    paths = tuple(tuple(path) for path in choices)
    problem = ""
    for i, path in enumerate(paths):
        if not path or any(not isinstance(rank, int) or isinstance(rank, bool) or rank < 0 for rank in path):
            problem = f"{list(path)} is not a path of ranks from 0 up"
        elif path in paths[:i]:
            problem = f"{list(path)} stands in it twice"
        elif len(path) > 1 and path[:-1] not in paths[:i]:
            problem = f"{list(path)} stands before its parent, or without it"
        elif len(path) > depth:
            problem = f"{list(path)} is deeper than the {depth} tokens that the heads can draft"
        if problem:
            break
    if not paths or len(paths) > MOST_NODES:
        problem = f"it has {len(paths)} nodes; 1 to {MOST_NODES} can be verified"
    if problem:
        raise EngineError(f"The draft tree cannot be used: {problem}.", "Correct the list of paths, or leave it out.", kind="config")
    return paths


@functools.lru_cache(maxsize=256)
def _levels(choices: tuple[Path, ...], n: int) -> tuple[tuple[tuple[Path, tuple[Path, ...]], ...], ...]:
    """Of the tree of the first n paths: for each depth, the paths that have children, and these."""
    below: dict[Path, list[Path]] = {}
    for path in choices[:n]:
        below.setdefault(path[:-1], []).append(path)
    deepest = max(map(len, choices[:n]), default=0)
    return tuple(tuple((path, tuple(children)) for path, children in below.items() if len(path) == d) for d in range(deepest))


def static(choices: tuple[Path, ...], root: int, budget: int, expand: Expand, choose: Choose) -> Tree:
    """The first `budget` paths of a fixed tree, filled in. Ranks that a small vocabulary or the filters do not have are left out."""
    tree = Tree()
    rows: dict[Path, int] = {(): 0}  # path of ranks -> row in the tree
    place: dict[Path, int] = {(): 0}  # … -> row of the last call
    for depth, level in enumerate(_levels(choices, budget)):
        level = tuple((path, children) for path, children in level if path in rows)
        if not level:
            break
        inner = [rows[path] for path, _ in level]
        tokens = [tree.tokens[row - 1] if row else root for row in inner]
        logits = expand(depth, [place[path[:-1]] for path, _ in level], tokens)
        place = {path: i for i, (path, _) in enumerate(level)}
        most = 1 + max(child[-1] for _, children in level for child in children)
        ids, chances = candidates(tree, inner, logits, choose, most)
        for i, (path, children) in enumerate(level):
            base = tree.scores[rows[path] - 1] if path else np.float32(0.0)
            for child in children:
                rank = child[-1]
                if rank < ids.shape[1] and ids[i, rank] >= 0:
                    rows[child] = tree.add(int(ids[i, rank]), rows[path], np.float32(base + chances[i, rank]))
    return tree.part([rows[path] - 1 for path in choices[:budget] if path in rows])


def dynamic(depth: int, top_k: int, root: int, budget: int, expand: Expand, choose: Choose) -> Tree:
    """EAGLE-2: `top_k` children of each survivor of a level, the best `top_k` of all children survive, `depth` levels below the
    first; the best `budget` of all children that were ever seen."""
    pool = Tree()
    level: list[int] = [0]  # rows to expand
    place = {0: 0}  # row -> its row in the call before
    for i in range(depth + 1):
        live = level if i == 0 else among_best(pool, level, budget)
        if not live:
            break
        above = [place[pool.parents[row - 1]] if row else 0 for row in live]
        logits = expand(i, above, [pool.tokens[row - 1] if row else root for row in live])
        place = {row: at for at, row in enumerate(live)}
        found = candidates(pool, live, logits, choose, top_k)
        children = spread(pool, live, *found, max(budget, top_k), best_first=False)  # no other one can be among the best
        level = survivors(pool, children, top_k)
    return pool.best(budget)


def among_best(pool: Tree, rows: list[int], n: int) -> list[int]:
    """Those rows that are still among the best n: below any other one no node can become one of them."""
    best = {i + 1 for i in pool.ranking()[:n]}
    return [row for row in rows if row in best]


def spread(pool: Tree, rows: list[int], ids: np.ndarray, chances: np.ndarray, most: int, best_first: bool = True) -> list[int]:
    """Put the best `most` children of these rows into the pool, best first or in their own order; returns their rows."""
    base = np.array([pool.scores[row - 1] if row else 0.0 for row in rows], np.float32)
    scores = (base[:, None] + chances.astype(np.float32)).ravel()
    order = np.argsort(-scores, kind="stable")[:most]
    if not best_first:
        order.sort()
    return [pool.add(int(ids.flat[at]), rows[at // ids.shape[1]], scores[at]) for at in order.tolist() if ids.flat[at] >= 0]


def survivors(pool: Tree, rows: list[int], n: int) -> list[int]:
    """The best n of these rows, best first."""
    return sorted(rows, key=lambda row: (-pool.scores[row - 1], row))[:n]
