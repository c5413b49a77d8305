"""The models that specchat knows by name: the packaged models.toml, with the person's own file merged over it (DESIGN 11).

A model can also be given as a hub id (`org/name`, or `org/name/file.gguf`), a folder, or a `.gguf` file. A broken user file raises
EngineError(kind="config") and is never written; `builtin()` works all the same.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import places
from engine.catalog import bindings, stored, tables
from engine.catalog.specs import AUTO, NGRAM, NONE, Mirror, ModelSpec, Role
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine.catalog.hardware import Hardware

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_FILE = re.compile(rf"({HUB_ID.pattern})/([^/]+\.gguf)")
SMALL_ENOUGH = 1 / 3  # a drafter that suits any target should be this much smaller, at most


@dataclass(frozen=True, slots=True)
class Offer:
    """Targets for machines with at least this much memory, the best first."""

    targets: tuple[str, ...]
    memory_gb: float = 0.0  # of the device: the graphics card's, or the machine's
    fast_4bit: bool = False  # only where the CPU computes 4-bit weights fast


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a first start offers. `target` "auto" means by hardware; the first offer that fits counts."""

    target: str = "auto"
    drafters: tuple[str, ...] = ()  # small models that can draft for any target
    cuda: tuple[Offer, ...] = ()
    mps: tuple[Offer, ...] = ()
    cpu: tuple[Offer, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One line of `specchat models`."""

    spec: ModelSpec
    on_disk: Path | None
    disk_bytes: int
    download_bytes: int  # 0 when it is on disk or the size is not known


@dataclass(frozen=True, slots=True)
class Catalog:
    """Models by name, and what to offer first."""

    targets: dict[str, ModelSpec]
    drafters: dict[str, ModelSpec]
    defaults: Defaults = field(default_factory=Defaults)

    def target(self, name: str) -> ModelSpec:
        """The target of this name, hub id, folder or file. EngineError(kind="unknown_name") names the nearest."""
        if found := _by_name(self.targets, name) or self._by_id(name):
            return found
        if heads := self.heads(name):
            raise bindings.no_target(heads)
        return _outside(name, "target") or self._unknown(name, [*self.targets])

    def heads(self, name: str) -> ModelSpec | None:
        """The draft heads of this name, hub id or folder; None where it means a target, another drafter, or nothing."""
        if _by_name(self.targets, name) or self._by_id(name):
            return None
        try:
            found = self.drafter(name)
        except EngineError:
            return None
        return found if found.kind == "heads" else None

    def drafter(self, name: str) -> ModelSpec:
        """The drafter of this name; also none, ngram, auto, and any target."""
        built_in = {"none": NONE, "auto": AUTO, "ngram": NGRAM}
        found = _by_name(self.drafters, name) or built_in.get(name.lower()) or _by_name(self.targets, name) or self._by_id(name)
        if found or (found := next((s for s in self.drafters.values() if s.repo and s.repo.lower() == name.lower()), None)):
            return replace(found, role="drafter")
        outside = _outside(name, "drafter")
        return stored.settled(outside) if outside else self._unknown(name, [*self.drafters, *self.targets, *built_in])

    def drafters_for(self, target: ModelSpec) -> list[ModelSpec]:
        """Drafters that suit a target, the likeliest first: its own list, heads made for it, look-ups, small models of any kind."""
        names = list(target.drafters)
        names += [spec.name for spec in self.drafters.values() if target.name in spec.bound_to]
        names += [spec.name for spec in self.drafters.values() if spec.kind == "ngram"]
        for name in self.defaults.drafters:
            spec = self.drafter(name)
            if not target.params or spec.params <= target.params * SMALL_ENOUGH:
                names.append(name)
        return [self.drafter(name) for name in dict.fromkeys(names) if name != target.name]

    def offers(self, hardware: Hardware) -> list[ModelSpec]:
        """Up to three targets to begin with on this machine, the recommended one first."""
        memory_gb = max((gpu.total for gpu in hardware.gpus), default=hardware.ram) / 1e9
        tiers = {"cuda": self.defaults.cuda, "mps": self.defaults.mps, "cpu": self.defaults.cpu}[hardware.device]
        for offer in tiers:
            if memory_gb >= offer.memory_gb and (hardware.fast_4bit or not offer.fast_4bit):
                return [self.target(name) for name in offer.targets][:3]
        return [min(self.targets.values(), key=lambda spec: spec.params or 1e9)] if self.targets else []

    def default_target(self, hardware: Hardware) -> ModelSpec:
        """What is loaded when nothing was ever chosen."""
        if self.defaults.target != "auto":
            return self.target(self.defaults.target)
        return self.offers(hardware)[0]

    def _by_id(self, name: str) -> ModelSpec | None:
        """An entry of the catalog by its hub id, so that its mirror and facts count."""
        return next((spec for spec in self.targets.values() if spec.repo and not spec.file and spec.repo.lower() == name.lower()), None)

    def _unknown(self, name: str, known: list[str]) -> ModelSpec:
        near = difflib.get_close_matches(name.lower(), known, 3, 0.4)
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        raise EngineError(
            f"There is no model named {name!r}.",
            f"{hint}`specchat models` lists all names; a hub id (org/name), a folder or a .gguf file works too.",
            kind="unknown_name",
        )


def builtin() -> Catalog:
    """The packaged catalog alone."""
    here = Path(__file__).with_name("models.toml")
    return _catalog([here if here.exists() else Path(__file__).parents[2] / "models.toml"])


def load(user_file: Path | None = None) -> Catalog:
    """The packaged catalog, with the person's models.toml (`user_file`, else the one in the config folder) merged over it by name."""
    user_file = user_file or places.config_dir() / "models.toml"
    here = Path(__file__).with_name("models.toml")
    return _catalog([here if here.exists() else Path(__file__).parents[2] / "models.toml", *([user_file] if user_file.exists() else [])])


def status(catalog: Catalog) -> list[ModelStatus]:
    """All models with files: where each is, what it takes, what a pull would fetch."""
    result = []
    specs = {**catalog.targets, **{n: s for n, s in catalog.drafters.items() if s.kind != "ngram"}}
    for spec in specs.values():
        found = stored.locate(spec)
        result.append(ModelStatus(spec, found, stored.disk_use(spec), 0 if found else spec.size))
    return result


# --- from tables to specs -------------------------------------------------------------------------------------------


def _catalog(files: list[Path]) -> Catalog:
    merged: dict[str, dict[str, Any]] = {"defaults": {}, "target": {}, "drafter": {}}
    origin: dict[tuple[str, str], Path] = {}
    for file in files:
        read = tables.read(file)
        merged["defaults"].update(read.get("defaults", {}))
        for role in ("target", "drafter"):
            for name, values in read.get(role, {}).items():
                before = merged[role].get(name, {})
                if values.keys() & tables.SOURCE.keys():  # another source: nothing of the old one may stay
                    before = {key: value for key, value in before.items() if key not in tables.SOURCE}
                merged[role][name] = before | values
                origin[role, name] = file
    targets = {name: _spec(name, "target", values, origin["target", name]) for name, values in merged["target"].items()}
    drafters = {name: _spec(name, "drafter", values, origin["drafter", name]) for name, values in merged["drafter"].items()}
    defaults = merged["defaults"]
    tiers = {
        key: tuple(
            Offer(tuple(o.get("targets", ())), float(o.get("memory_gb", 0)), o.get("fast_4bit", False)) for o in defaults.get(key, ())
        )
        for key in ("cuda", "mps", "cpu")
    }
    catalog = Catalog(targets, drafters, Defaults(defaults.get("target", "auto"), tuple(defaults.get("drafters", ())), **tiers))
    _check_names(catalog, files[-1])
    return catalog


def _spec(name: str, role: Role, values: dict[str, Any], file: Path) -> ModelSpec:
    kind = values.get("kind", "model")
    gguf, path, repo = values.get("gguf"), values.get("path"), values.get("repo")
    if gguf and not repo:
        path, gguf = gguf, None
    if kind != "ngram" and not (repo or path or "mirror" in values):
        raise _wrong(file, [role, name], "lacks repo, path or gguf", "It must say where the model is.")
    if repo and not HUB_ID.fullmatch(repo):
        raise _wrong(file, [role, name], f"has a repo that is no hub id ({repo})", "A hub id looks like org/name.", "repo")
    mirror = None
    if m := values.get("mirror"):
        mirror = Mirror(tuple(m["wheels"]), tuple(m["members"]), m["file"], m["size"], m["sha256"].lower())
    if mirror and (len(mirror.members) not in (1, len(mirror.wheels)) or Path(mirror.file).name != mirror.file or not mirror.wheels):
        raise _wrong(file, [role, name], "has a mirror that does not fit together", "It needs one member for all wheels or one for each.")
    return ModelSpec(
        name=name,
        role=role,
        kind=kind,
        repo=repo,
        file=gguf,
        path=file.parent / places.written(path) if path else None,
        mirror=mirror,
        licence=values.get("licence", ""),
        gated=values.get("gated", False),
        params=float(values.get("params_b", 0)),
        size=round(values.get("size_gb", 0) * 1e9),
        context=values.get("context"),
        quant=values.get("quant"),
        head=values.get("head"),
        template=values.get("template"),
        stop=tuple(values.get("stop", ())),
        bound_to=tuple(values.get("for", ())),
        note=values.get("note", ""),
        drafters=tuple(values.get("drafters", ())),
        via=values.get("via"),
        min_match=values.get("min_match", 2),
        max_match=values.get("max_match", 8),
    )


def _check_names(catalog: Catalog, file: Path) -> None:
    """Every name that the catalog itself mentions must exist."""
    mentions = [(["target", spec.name], "drafters", name, catalog.drafter) for spec in catalog.targets.values() for name in spec.drafters]
    mentions += [(["defaults"], "drafters", name, catalog.drafter) for name in catalog.defaults.drafters]
    offers = [*catalog.defaults.cuda, *catalog.defaults.mps, *catalog.defaults.cpu]
    mentions += [(["defaults"], "targets", name, catalog.target) for offer in offers for name in offer.targets]
    if catalog.defaults.target != "auto":
        mentions.append((["defaults"], "target", catalog.defaults.target, catalog.target))
    for path, key, name, look_up in mentions:
        try:
            look_up(name)
        except EngineError as error:
            raise _wrong(file, path, f"names a model that does not exist ({name})", error.hint, key) from None


def _wrong(file: Path, path: list[str], problem: str, hint: str, key: str = "") -> EngineError:
    line = tables.line_of(file.read_text(encoding="utf-8").splitlines(), path, key)
    return EngineError(f"{file}, line {line}: [{'.'.join(path)}] {problem}.", hint, kind="config", numbers={"line": line})


def _by_name(specs: dict[str, ModelSpec], name: str) -> ModelSpec | None:
    return specs.get(name) or specs.get(name.lower())


def _outside(name: str, role: Role) -> ModelSpec | None:
    """A folder, a .gguf file or a hub id that is not in the catalog; None when the text is none of them."""
    path = places.written(name)
    if path.exists() and (path.is_dir() or path.suffix == ".gguf"):
        return ModelSpec(path.resolve().stem if path.is_file() else path.resolve().name, role, path=path.absolute())
    if found := HUB_FILE.fullmatch(name):
        return ModelSpec(name, role, repo=found[1], file=found[2])
    if name.endswith(".gguf") or name.startswith((".", "/", "~")) or "\\" in name:
        raise EngineError(f"There is no model at {name}.", "Check the path: it must be a folder or a .gguf file.", kind="missing_weights")
    return ModelSpec(name, role, repo=name) if HUB_ID.fullmatch(name) else None
