"""models.toml: the packaged one, the person's own, mistakes in it, and everything that can stand where a name can."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine import places
from engine.catalog.catalog import Catalog, builtin, load, status
from engine.catalog.hardware import Gpu, Hardware
from engine.catalog.specs import AUTO, NONE
from engine.errors import EngineError


def user(text: str | bytes) -> Path:
    path = places.config_dir() / "models.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def failure(text: str | bytes) -> EngineError:
    path = user(text)
    before = path.read_bytes()
    with pytest.raises(EngineError) as caught:
        load()
    assert caught.value.kind == "config"
    assert str(path) in caught.value.message
    assert path.read_bytes() == before
    return caught.value


@pytest.fixture(scope="module")
def known() -> Catalog:
    return builtin()


# --- the packaged file


def test_every_entry_is_complete(known: Catalog) -> None:
    assert len(known.targets) > 30
    for name, spec in known.targets.items():
        assert re.fullmatch(r"[a-z0-9.-]{3,20}", name)
        assert spec.repo
        assert spec.licence
        assert 0.1 < spec.params < 75
        assert spec.size > 1.8e9 * spec.params  # 16 bits a value, and the tokenizer
        assert spec.context
        assert spec.context >= 2048
        assert spec.gated == spec.repo.startswith(("meta-llama/", "google/gemma-3"))
        for drafter in spec.drafters:
            assert known.drafter(drafter).params < spec.params
    assert len({spec.repo for spec in known.targets.values()}) == len(known.targets)


def test_mirrors(known: Catalog) -> None:
    mirrors = {name: spec.mirror for name, spec in known.targets.items() if spec.mirror}
    assert set(mirrors) == {"smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "gemma-3-270m"}
    for mirror in mirrors.values():
        assert re.fullmatch("[0-9a-f]{64}", mirror.sha256)
        assert mirror.file.endswith(".gguf")
        assert all(re.fullmatch(r"[a-z0-9-]+==[\d.]+", wheel) for wheel in mirror.wheels)
    assert len(mirrors["qwen2.5-coder-1.5b"].wheels) == 22


# --- names


def test_names(known: Catalog, home: Path) -> None:
    assert known.target("qwen3-8b").repo == "Qwen/Qwen3-8B"
    assert known.target("Qwen3-8B").name == "qwen3-8b"
    assert known.target("Qwen/Qwen3-8B").name == "qwen3-8b"
    assert known.target("someone/model").repo == "someone/model"
    quantized = known.target("someone/model-GGUF/model-q4.gguf")
    assert (quantized.repo, quantized.file) == ("someone/model-GGUF", "model-q4.gguf")
    assert known.target(quantized.name) == quantized


def test_paths(known: Catalog, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "model.gguf").write_bytes(b"")
    (home / "folder").mkdir()
    monkeypatch.chdir(home)
    for name in ("folder", "./folder", str(home / "folder")):
        assert known.target(name).path == home / "folder"
    assert known.drafter("model.gguf").path == home / "model.gguf"
    assert known.drafter("model.gguf").role == "drafter"
    for gone in ("./gone", "gone.gguf", "~/gone-from-here", "/gone"):
        with pytest.raises(EngineError) as caught:
            known.target(gone)
        assert caught.value.kind == "missing_weights"


@pytest.mark.parametrize(("name", "near"), [("qwen3-9b", "qwen3-8b"), ("lama-3.1-8b", "llama-3.1-8b"), ("smolm2-135m", "smollm2-135m")])
def test_an_unknown_name_shows_the_nearest(known: Catalog, name: str, near: str) -> None:
    for look_up in (known.target, known.drafter):
        with pytest.raises(EngineError) as caught:
            look_up(name)
        assert caught.value.kind == "unknown_name"
        assert repr(name) in caught.value.message
        assert near in caught.value.hint


def test_drafters(known: Catalog) -> None:
    assert known.drafter("none") == NONE
    assert known.drafter("AUTO") == AUTO
    assert known.drafter("ngram").kind == "ngram"
    small = known.drafter("qwen3-0.6b")
    assert small.role == "drafter"
    assert small.repo == known.target("qwen3-0.6b").repo
    with pytest.raises(EngineError):
        known.target("ngram")


def test_drafters_for(known: Catalog) -> None:
    names = [spec.name for spec in known.drafters_for(known.target("qwen3-8b"))]
    assert names[:3] == ["qwen3-0.6b", "qwen3-1.7b", "ngram"]
    assert "smollm2-135m" in names
    assert len(names) == len(set(names))
    tiny = known.target("smollm2-135m")
    assert [spec.name for spec in known.drafters_for(tiny)] == ["ngram"]
    assert "smollm2-135m" in [spec.name for spec in known.drafters_for(known.target("someone/model"))]


# --- what to offer

GB = 10**9


def machine(gpu: float = 0, ram: float = 16, flags: tuple[str, ...] = (), device: str = "cpu") -> Hardware:
    gpus = (Gpu("card", int(gpu * GB), int(gpu * GB)),) if gpu else ()
    return Hardware("os", "cpu", 4, flags, int(ram * GB), gpus, device)  # type: ignore[arg-type]


@pytest.mark.parametrize("gpu", [2, 4.3, 6.4, 8.6, 12.9, 17.2, 25.8])
def test_offers_fit_the_card(known: Catalog, gpu: float) -> None:
    offers = known.offers(machine(gpu, device="cuda"))
    assert len(offers) == 3
    for spec in offers:
        assert spec.params * 0.6 + 0.5 < gpu  # 4 bits, the head in 16, and some room
        assert not spec.gated
    assert known.default_target(machine(gpu, device="cuda")) == offers[0]


def test_more_memory_offers_more(known: Catalog) -> None:
    sizes = [known.default_target(machine(gpu, device="cuda")).params for gpu in (2, 4.3, 6.4, 12.9, 17.2)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


@pytest.mark.parametrize("ram", [2, 4, 8, 16, 64])
@pytest.mark.parametrize("flags", [(), ("avx2",)])
def test_offers_for_a_cpu_are_small_and_have_a_mirror_among_them(known: Catalog, ram: float, flags: tuple[str, ...]) -> None:
    offers = known.offers(machine(ram=ram, flags=flags))
    assert len(offers) == 3
    assert all(spec.params < (2 if flags else 1) for spec in offers)
    assert offers[0].mirror


def test_offers_for_shared_memory(known: Catalog) -> None:
    for memory in (5, 11, 24, 100):
        assert all(spec.params * 2 < memory for spec in known.offers(machine(memory, device="mps")))


# --- the person's file


def test_entries_merge_by_name() -> None:
    user(
        """
        [defaults]
        target = "mine"
        [target.mine]
        path = "models/mine"
        stop = ["END"]
        drafters = ["my-heads"]
        [target.qwen3-8b]
        context = 8192
        [target.smollm2-135m]
        repo = "other/place"
        [drafter.my-heads]
        kind = "heads"
        repo = "me/heads"
        for = ["mine"]
        """
    )
    catalog = load()
    mine = catalog.target("mine")
    assert mine.path == places.config_dir() / "models" / "mine"
    assert mine.stop == ("END",)
    assert catalog.target("qwen3-8b").context == 8192
    assert catalog.target("qwen3-8b").repo == "Qwen/Qwen3-8B"
    moved = catalog.target("smollm2-135m")
    assert (moved.repo, moved.mirror) == ("other/place", None)
    assert catalog.default_target(machine()) == mine
    assert catalog.drafters_for(mine)[0].name == "my-heads"
    assert catalog.drafter("my-heads").bound_to == ("mine",)
    assert builtin().targets.keys() < catalog.targets.keys()


def test_no_file_is_fine() -> None:
    assert load().targets == builtin().targets


def test_a_gguf_alone_is_a_path_and_beside_a_repo_a_file_in_it(home: Path) -> None:
    user(f'[target.a]\ngguf = "{home.as_posix()}/a.gguf"\n[target.b]\nrepo = "x/y"\ngguf = "b.gguf"\n')
    catalog = load()
    assert catalog.target("a").path == home / "a.gguf"
    assert (catalog.target("b").repo, catalog.target("b").file) == ("x/y", "b.gguf")


BAD = {
    "syntax": ('[target.a]\nrepo = "x/y"\nlicence = \n', 3, "TOML", ""),
    "not closed": ('[target.a]\nrepo = "x/y', 2, "TOML", ""),
    "not utf-8": (b'[target.a]\nnote = "\xff"\n', 2, "UTF-8", ""),
    "unknown table": ('\n\n[targets.a]\nrepo = "x/y"\n', 3, "targets", "target"),
    "unknown key": ('[target.a]\nrepo = "x/y"\n# c\nlicense = "MIT"\n', 4, "license", "licence"),
    "unknown key, quoted names": (
        '[target."a.b"]\nrepo = "x/y"\n[target."c.d"]\nrepo = "x/y"\n"qant" = "nf4"\n',
        5,
        "qant",
        "quant",
    ),
    "unknown key, dotted": ('[target]\na.repo = "x/y"\na.contxt = 5\n', 3, "contxt", "context"),
    "unknown key behind a long text": (
        '[target.a]\nrepo = "x/y"\ntemplate = """\n[target.b]\nhed = 1\n"""\nhed = "nf4"\n',
        7,
        "hed",
        "head",
    ),
    "unknown key in a mirror": ('[target.a]\nrepo = "x/y"\n[target.a.mirror]\nwheel = []\n', 4, "wheel", "wheels"),
    "unknown key in an inline table": ('[target.a]\nrepo = "x/y"\nmirror = {wheel = []}\n', 3, "wheel", "wheels"),
    "unknown key in defaults": ('[defaults]\ntargt = "a"\n', 2, "targt", "target"),
    "wrong type": ('[target.a]\nrepo = "x/y"\ncontext = "4096"\n', 3, "whole number", "'4096'"),
    "a flag is no number": ('[target.a]\nrepo = "x/y"\nparams_b = true\n', 3, "number", "True"),
    "list of other things": ('[target.a]\nrepo = "x/y"\nstop = [1]\n', 3, "list of texts", "[1]"),
    "unknown value": ('[target.a]\nrepo = "x/y"\nquant = "nf5"\n', 3, "nf5", "nf4"),
    "unknown kind": ('[drafter.a]\nrepo = "x/y"\nkind = "head"\n', 3, "head", "heads"),
    "no source": ('[target.a]\nnote = "x"\n', 1, "lacks repo", ""),
    "no hub id": ('[target.a]\nrepo = "xy"\n', 2, "xy", "org/name"),
    "half a mirror": ('[target.a]\nrepo = "x/y"\n[target.a.mirror]\nwheels = ["a==1"]\n', 3, "sha256", ""),
    "drafter that is not there": ('[target.a]\nrepo = "x/y"\ndrafters = ["qwen3-0.7b"]\n', 3, "qwen3-0.7b", "qwen3-0.6b"),
    "default that is not there": ('[defaults]\ntarget = "qwen3-9b"\n', 2, "qwen3-9b", "qwen3-8b"),
    "entry without a name": ('[target]\nrepo = "x/y"\n', 2, "[target.NAME]", ""),
    "table that is none": ("target = 3\n", 1, "[target.NAME]", ""),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_name_file_line_and_the_nearest_key(case: str) -> None:
    text, line, said, hinted = BAD[case]
    error = failure(text)
    assert f"line {line}:" in error.message
    assert said in error.message
    assert hinted in error.hint
    assert error.hint
    assert builtin().targets  # a broken user file does not stop the program from starting with its own


def test_an_unreadable_file(home: Path) -> None:
    (places.config_dir() / "models.toml").mkdir()
    with pytest.raises(EngineError) as caught:
        load()
    assert caught.value.kind == "config"


def test_status(home: Path) -> None:
    (home / "mine").mkdir()
    (home / "mine" / "weights").write_bytes(bytes(1234))
    user(f'[target.mine]\npath = "{(home / "mine").as_posix()}"\n')
    rows = {row.spec.name: row for row in status(load())}
    assert rows["mine"].on_disk == home / "mine"
    assert (rows["mine"].disk_bytes, rows["mine"].download_bytes) == (1234, 0)
    far = rows["qwen3-8b"]
    assert (far.on_disk, far.disk_bytes) == (None, 0)
    assert far.download_bytes == far.spec.size
    assert "ngram" not in rows
