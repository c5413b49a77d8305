"""What the screen asks about the machine, as one replaceable object: catalog, hardware, downloads, what is remembered.

The real answers are imported when they are first needed, so that the first frame does not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from engine.catalog.specs import ModelSpec
from engine.errors import EngineError

if TYPE_CHECKING:
    from app.config import Config
    from app.settings import Value
    from app.store import Store
    from engine.catalog.catalog import Catalog
    from engine.catalog.fit import Verdict
    from engine.catalog.hardware import Hardware
    from engine.catalog.progress import Progress
    from engine.catalog.vocabulary import Relation
    from engine.protocol import LoadOptions

DEFAULT_CONTEXT = 32_768  # tokens that a model gets where nobody says and it could do more, as in engine.decoder.opened
WITHOUT_FILES = ("none", "ngram", "auto")


class Surroundings:
    """The real machine; tests replace single methods."""

    demo = False  # a recording: nothing is kept
    suggestions: tuple[str, ...] = ()  # questions to begin with
    sets: tuple[str, ...] = ()  # prompt sets that can be measured; () = all

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

    def open_store(self) -> Store:
        """The database of chats."""
        from app.database import FILE
        from app.store import Store
        from engine.places import data_dir

        return Store(data_dir() / FILE)

    def remember(self, target: ModelSpec, drafter: ModelSpec | None) -> str | None:
        """Keep what was loaded for the next start; a warning where that fails. `drafter` None leaves the saved one."""
        from app.state import State, load_state, save_state

        before = load_state()
        after = State(reference(target), reference(drafter) if drafter is not None else before.last_drafter)
        return save_state(after) if after != before else None

    def disk_use(self, spec: ModelSpec) -> int:
        """Bytes that a model takes on disk, unfinished downloads and packed weights included."""
        from engine.catalog.stored import disk_use

        return disk_use(spec)

    def disk_free(self) -> int:
        """Bytes free where downloads go."""
        import shutil

        from engine.catalog.stored import hub_cache

        folder = hub_cache()
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return shutil.disk_usage(folder).free

    def remove(self, spec: ModelSpec) -> int:
        """Delete a downloaded model; bytes freed."""
        from engine.catalog.stored import remove

        return remove(spec)

    def free(self, device: str) -> tuple[int, int]:
        """(free, total) bytes of memory of a device."""
        from engine.catalog.fit import available

        return available(device)

    def need(self, spec: ModelSpec, options: LoadOptions, *, beside: bool) -> int:
        """Estimated bytes of a loaded model, 0 when nothing is known; `beside` another one that has loaded the libraries already."""
        from engine.catalog import fit

        device = options.draft_device if beside and options.draft_device != "auto" else options.device
        quant = options.draft_quant if beside and options.draft_quant != "auto" else spec.quant or options.quant
        path = self.locate(spec)
        if path is None:
            bits = fit.BITS[fit.default_quant(device) if quant == "auto" else quant]
            return round(spec.params * 1e9 * bits / 8)
        try:
            context = min(options.context or DEFAULT_CONTEXT, spec.context or DEFAULT_CONTEXT)
            found = fit.expected(path, quant=quant, head=spec.head or options.head, context=context, device=device)
        except (EngineError, KeyError, TypeError, ValueError):  # damaged, or of a kind that the estimate does not know
            return 0
        return fit.without_libraries(found, device).total if beside else found.total

    def verdict(self, need: int, free: int) -> Verdict:
        """fits, tight or no."""
        from engine.catalog.fit import verdict

        return verdict(need, free)

    def recall(self, target: str, quant: str, device: str) -> dict[str, float]:
        """Speed-up by drafter, as measured on this machine."""
        from engine.catalog.measured import recall

        return recall(target, quant, device)

    def relation(self, one: ModelSpec, other: ModelSpec) -> tuple[Relation, str]:
        """How the vocabularies of two models stand to each other: same, other or unknown, and a clause for people."""
        from engine.catalog.vocabulary import relation

        here, there = self.locate(one), self.locate(other)
        if here is None or there is None:
            return "unknown", "known once both models are on this machine"
        return relation(here, there)

    def config(self) -> Config:
        """What the person keeps in config.toml."""
        from app.config import load_config

        return load_config()

    def keep(self, path: str, value: Value | None) -> None:
        """Write one setting into config.toml, None for the default. EngineError where that is not possible."""
        from app.config import save

        save(path, value)

    def check(self, target: ModelSpec, drafter: ModelSpec, stop: Event | None = None) -> dict[str, Any]:
        """How a drafter would be used with a target, or why not: the facts of `specchat check`. Takes seconds; `stop` ends it early."""
        from app.check import facts

        return facts(reference(target), reference(drafter), stop)

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
