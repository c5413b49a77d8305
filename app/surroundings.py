"""What the screen asks about the machine, as one replaceable object: catalog, hardware, downloads, what is remembered.

The real answers are imported when they are first needed, so that the first frame does not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from engine.catalog.specs import ModelSpec
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine.catalog.catalog import Catalog
    from engine.catalog.hardware import Hardware
    from engine.catalog.progress import Progress

WITHOUT_FILES = ("none", "ngram", "auto")


class Surroundings:
    """The real machine; tests replace single methods."""

    def catalog(self) -> Catalog:
        """All known models. A broken models.toml of the person's own costs its entries; the start has said so."""
        from engine.catalog.catalog import builtin, load

        try:
            return load()
        except EngineError:
            return builtin()

    def probe(self) -> Hardware:
        """What this machine has."""
        from engine.catalog.hardware import probe

        return probe()

    def locate(self, spec: ModelSpec) -> Path | None:
        """Where the files of a model are, None when they are not on this machine. No network."""
        from engine.catalog.stored import locate

        return locate(spec)

    def pull(self, spec: ModelSpec, progress: Callable[[Progress], None], cancelled: Callable[[], bool]) -> Path:
        """Download; blocks, so it runs in a thread."""
        from engine.catalog.hub import pull

        return pull(spec, progress, cancelled)

    def remember(self, target: ModelSpec, drafter: ModelSpec | None) -> str | None:
        """Keep what was loaded for the next start; a warning where that fails. `drafter` None leaves the saved one."""
        from app.state import State, load_state, save_state

        before = load_state()
        after = State(reference(target), reference(drafter) if drafter is not None else before.last_drafter)
        return save_state(after) if after != before else None

    def on_disk(self, spec: ModelSpec) -> bool:
        """True when it can be loaded without a download."""
        return spec.kind in WITHOUT_FILES or self.locate(spec) is not None


def reference(spec: ModelSpec) -> str:
    """What finds this model again from any folder; one that is in no catalog is found by its hub id."""
    if spec.path is not None:
        return str(spec.path.absolute())
    if spec.repo and spec.file and spec.file.endswith(f"{spec.name}.gguf"):
        return f"{spec.repo}/{spec.file}"
    return spec.repo if spec.repo and spec.repo.endswith(f"/{spec.name}") else spec.name
