"""Rooms: a folder says what is in it, imports between rooms point one way, and pure rooms know nothing of the world."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeGuard

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("statebackend", "snapshot", "recovery")
"""Each imports itself and those before it."""

PURE = {
    "statebackend/ids.py", "statebackend/entries.py", "statebackend/files.py", "statebackend/keygroups.py",
    "statebackend/fail_points.py", "statebackend/errors.py", "statebackend/on_demand.py",
    "snapshot/ids.py", "statebackend/readable.py", "snapshot/fail_points.py",
    "snapshot/cut", "snapshot/epochs", "snapshot/journal", "snapshot/tree", "snapshot/host/flow",
    "snapshot/replication",
    "recovery/decisions", "recovery/schemes", "recovery/restart_strategies.py", "recovery/events.py",
    "recovery/inject", "recovery/testing",
}  # fmt: skip
"""Rooms that decide, and do nothing else."""

ALSO_PURE = {
    "snapshot/host/net": "handshake connection_kinds",
    "statebackend/snapshots": "catching_up consolidation cuttable file_set_json sealed_json snapshot_log uploads",
    "recovery/comparison": "outages plan summary",
    "recovery/driver/attempts": "moves recovery_clock requests",
    "recovery/driver/launchers": "launch_rules",
    "recovery/driver/report": "epoch_times overdue",
    "recovery/driver/settings": "program_fit",
    "recovery/driver/tree": "manifests splits",
}
"""Modules that do the same in rooms that do more."""

NOT_PURE = {"snapshot/journal/store.py", "recovery/testing/simulated_job.py"}
"""Machines of pure rooms are carried out here."""

ARROW_ALONE = {"statebackend/keys", "statebackend/states", "statebackend/tables/values", "statebackend/tables/format"}
"""Rooms that compute: they know Arrow and dates, and nothing else of the world."""

WIRINGS = ROOT / "snapshot/host/protocol/wiring.py"
"""The kinds of wiring that schemes choose from."""

ARROW = {"datetime", "pyarrow"}
WORLD = {
    "asyncio", "concurrent", "fsspec", "multiprocessing", "os", "pathlib", "pyspark", "random", "rocksdict", "s3fs",
    "secrets", "select", "selectors", "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time",
    "urllib", "uuid", "statebackend.means",
}  # fmt: skip
"""Spark, storage, sockets, threads, clocks, randomness."""


def modules() -> dict[str, Path]:
    """Return every module by its name, but for the packages' own `__init__`, which name what is in all rooms."""
    paths = (path for package in PACKAGES for path in (ROOT / package).glob("**/*.py"))
    found = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}
    return {name: path for name, path in found.items() if name.removesuffix(".__init__") not in PACKAGES}


@cache
def imported(source: str) -> Sequence[str]:
    """Return every module that is imported anywhere in this text, for type checkers alone as well."""
    return tuple(_imported(source))


def _imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.ImportFrom():
                yield "a relative import"
            case _:
                pass


def room_of(module: str) -> str:
    """Return the folder of a module; one that lies beside rooms, and not in one, is a room of its own."""
    folder = module.rpartition(".")[0]
    return module if folder in (*PACKAGES, "snapshot.host") else folder


def rooms(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Return which rooms each room imports."""
    found: dict[str, set[str]] = {}
    for module, source in sources.items():
        uses = found.setdefault(room_of(module), set())
        for name in imported(source):
            package = name.rpartition(".")[0]
            for target in (name, package, f"{name}.__init__", f"{package}.__init__"):
                if target in sources:
                    uses.add(room_of(target))
    return {room: uses - {room} for room, uses in found.items()}


def worldly(source: str, world: set[str]) -> set[str]:
    return {name for name in imported(source) if name in world or name.partition(".")[0] in world}


def pure_modules() -> list[Path]:
    alone = [ROOT / folder / f"{name}.py" for folder, names in ALSO_PURE.items() for name in names.split()]
    paths = [path for room in PURE for path in ([ROOT / room] if room.endswith(".py") else (ROOT / room).glob("*.py"))]
    return [path for path in [*paths, *alone] if path.relative_to(ROOT).as_posix() not in NOT_PURE]


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def names_in(path: Path) -> set[str]:
    """Return every name and attribute that a module imports or uses."""
    found = {name.rpartition(".")[2] for name in imported(path.read_text())}
    for node in ast.walk(parsed(path)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.add(name)
            case _:
                pass
    return found


def is_scheme(node: ast.AST) -> TypeGuard[ast.ClassDef]:
    """True if it is a class, and no protocol, that says how a run of a job begins, as all schemes do."""
    if not isinstance(node, ast.ClassDef) or any(ast.unparse(base) == "Protocol" for base in node.bases):
        return False
    return any(isinstance(part, ast.FunctionDef) and part.name == "begin" for part in node.body)


def test_imports_point_from_recovery_to_snapshot_to_statebackend() -> None:
    for module, path in modules().items():
        package = module.partition(".")[0]
        others = {*PACKAGES[PACKAGES.index(package) + 1 :], "tests", "examples", "a relative import"}
        wrong = {name for name in imported(path.read_text()) if name.partition(".")[0] in others}
        assert wrong == set(), f"{module} imports from a package that is above its own"


def test_the_means_are_always_named_with_their_module_so_that_a_simulation_can_replace_them() -> None:
    for path in modules().values():
        named = {name for name in imported(path.read_text()) if name.startswith("statebackend.means.")}
        assert named == set(), f"{path.relative_to(ROOT)} imports a name of statebackend.means, not the module"


def used_at_import(source: str) -> Iterator[str]:
    """Give every name of the means that is used when the module is imported, and so stays the real one."""

    def visit(node: ast.AST) -> Iterator[str]:
        match node:
            case ast.FunctionDef(decorator_list=decorators, args=arguments):
                for part in (*decorators, *arguments.defaults, *arguments.kw_defaults):
                    yield from visit(part) if part is not None else ()
            case ast.Lambda(args=arguments):
                for part in (*arguments.defaults, *arguments.kw_defaults):
                    yield from visit(part) if part is not None else ()
            case ast.AnnAssign(value=value):
                yield from visit(value) if value is not None else ()
            case ast.Attribute(value=ast.Name("means"), attr=name) if name != "OncePerProcess":
                yield name
            case _:
                for child in ast.iter_child_nodes(node):
                    yield from visit(child)

    return visit(ast.parse(source))


def test_no_means_are_used_when_a_module_is_imported_as_these_would_stay_the_real_ones() -> None:
    for path in modules().values():
        assert set(used_at_import(path.read_text())) == set(), path.relative_to(ROOT)
    source = """
A = means.Lock()
def f(now: means.Event, clock=means.monotonic): return means.wall()
class C(means.socket):
    made: means.Lock = field(default_factory=means.getpid)
    later: means.Lock = field(default_factory=lambda: means.Lock())
ONCE = means.OncePerProcess(list)
"""
    assert list(used_at_import(source)) == ["Lock", "monotonic", "socket", "getpid"]


def test_no_two_rooms_import_each_other_whatever_way_round() -> None:
    found = rooms({module: path.read_text() for module, path in modules().items()})
    TopologicalSorter(found).prepare()


def test_pure_rooms_import_neither_spark_nor_storage_sockets_threads_clocks_randomness_or_arrow() -> None:
    for path in pure_modules():
        assert worldly(path.read_text(), WORLD | ARROW) == set(), f"{path.relative_to(ROOT)} is pure"


def test_rooms_that_compute_import_nothing_of_the_world_but_arrow() -> None:
    for path in (path for room in ARROW_ALONE for path in (ROOT / room).glob("*.py")):
        assert worldly(path.read_text(), WORLD) == set(), f"{path.relative_to(ROOT)} only computes"


def test_a_wiring_is_told_apart_in_one_place() -> None:
    """Schemes make them, `snapshot/host/wiring.py` asks for them, and all other modules only hand them on."""
    wirings = {node.name for node in ast.walk(parsed(WIRINGS)) if isinstance(node, ast.ClassDef)}
    assert wirings != set()
    allowed = {WIRINGS, ROOT / "snapshot/host/wiring.py", *(ROOT / "recovery/schemes").glob("*.py")}
    for module, path in modules().items():
        if path not in allowed:
            assert names_in(path) & wirings == set(), f"{module} names a wiring; ask for it in snapshot/host/wiring.py"


def test_no_module_but_those_of_schemes_names_a_scheme() -> None:
    """All others take what `recovery.schemes.scheme` promises of each; a simulated job's shape stands for its user."""
    rooms = (ROOT / "recovery/schemes").glob("*.py")
    schemes = {node.name for path in rooms for node in ast.walk(parsed(path)) if is_scheme(node)}
    assert schemes != set()
    for module, path in modules().items():
        if not module.startswith("recovery.schemes.") and module != "recovery.testing.whole.shape":
            assert names_in(path) & schemes == set(), f"{module} names a scheme; ask it by recovery.schemes.scheme"


def test_every_room_and_module_that_is_named_here_exists() -> None:
    named = [ROOT / room for room in PURE | NOT_PURE | ARROW_ALONE]
    assert [str(path) for path in [*named, *pure_modules()] if not path.exists()] == []


def test_rooms_that_import_each_other_over_a_third_are_noticed() -> None:
    sources = {
        "snapshot.cut.wire": "from snapshot.tree.layout import JOB",
        "snapshot.tree.layout": "def f():\n    import snapshot.ids",
        "snapshot.ids": "if TYPE_CHECKING:\n    from snapshot.cut import wire",
    }
    with pytest.raises(CycleError):
        TopologicalSorter(rooms(sources)).prepare()


def test_an_import_of_the_world_inside_of_a_function_is_noticed() -> None:
    assert worldly("def f():\n    import time\n    from os import path", WORLD) == {"time", "os.path"}
