"""Imports point one way, and the protocol cores know nothing of the world."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

ALLOWED = {
    "statebackend": {"statebackend"},
    "snapshot": {"statebackend", "snapshot"},
    "recovery": {"statebackend", "snapshot", "recovery"},
}
"""Which of our packages a package may import: statebackend <- snapshot <- recovery."""

EDGES = {
    "recovery/__main__.py",
    "recovery/attached.py",
    "recovery/running.py",
    "snapshot/journal_store.py",
    "statebackend/backends/heap_backend.py",
    "statebackend/backends/overlay.py",
    "statebackend/backends/rocksdb_backend.py",
    "statebackend/backends/rocksdb_tables.py",
    "statebackend/backends/scratch_file.py",
    "statebackend/backends/scratch_folder.py",
    "statebackend/backends/sst.py",
    "statebackend/backends/sst_process.py",
    "statebackend/backends/unused_memory.py",
    "statebackend/canonical/arrow_values.py",
    "statebackend/canonical/by_key.py",
    "statebackend/canonical/changing.py",
    "statebackend/canonical/exporting.py",
    "statebackend/canonical/importing.py",
    "statebackend/canonical/mapping.py",
    "statebackend/canonical/parquet.py",
    "statebackend/canonical/schema.py",
    "statebackend/canonical/stored_states.py",
    "statebackend/child_python.py",
    "statebackend/followed_files.py",
    "statebackend/keyed_state.py",
    "statebackend/keys/arrow.py",
    "statebackend/keys/columns.py",
    "statebackend/keys/names.py",
    "statebackend/keys/packing.py",
    "statebackend/keys/structs.py",
    "statebackend/keys/times.py",
    "statebackend/keys/types.py",
    "statebackend/snapshot_folder.py",
    "statebackend/snapshots/local_files.py",
    "statebackend/snapshots/persister.py",
    "statebackend/snapshots/restore.py",
    "statebackend/snapshots/state_files.py",
    "statebackend/snapshots/transfer.py",
    "statebackend/state_reader.py",
    "statebackend/states/codec_choice.py",
    "statebackend/states/codecs.py",
    "statebackend/states/map_keys.py",
    "statebackend/states/row_names.py",
    "statebackend/stores/fsspec_store.py",
    "statebackend/stores/limited_store.py",
    "statebackend/stores/local_store.py",
    "statebackend/stores/memory_store.py",
    "statebackend/stores/patience.py",
    "statebackend/stores/s3_store.py",
    "statebackend/tables/aggregations.py",
    "statebackend/tables/blocks.py",
    "statebackend/tables/cold_keys.py",
    "statebackend/tables/cold_run.py",
    "statebackend/tables/frozen_table.py",
    "statebackend/tables/kept_keys.py",
    "statebackend/tables/key_arena.py",
    "statebackend/tables/stored_blocks.py",
    "statebackend/tables/table.py",
    "statebackend/tables/turns.py",
    "statebackend/tables/values_blocks.py",
}
"""The modules that touch the world. Every other one, outside the test kits, is a core: new modules are cores too."""

WORLD = {
    "asyncio", "concurrent", "datetime", "fsspec", "multiprocessing", "os", "pathlib", "pyarrow", "pyspark", "random",
    "rocksdict", "s3fs", "secrets", "select", "selectors", "shutil", "signal", "socket", "subprocess", "tempfile",
    "threading", "time", "urllib", "uuid",
}  # fmt: skip
"""What a core must not import: Spark, storage, sockets, threads, clocks, randomness."""

WORLDLY_FOLDERS = (
    "recovery/command/",
    "recovery/driver/",
    "recovery/savepoints/",
    "snapshot/host/",
    "snapshot/operators/",
    "snapshot/program/",
    "snapshot/sinks/",
    "snapshot/sources/",
    "snapshot/structured/",
)
"""Folders whose modules touch the world, but for those of `CORES_IN_THEM`."""

CORES_IN_THEM = {
    "recovery/driver/endings.py",
    "recovery/driver/epoch_times.py",
    "recovery/driver/manifests.py",
    "recovery/driver/placement.py",
    "recovery/driver/program_fit.py",
    "recovery/driver/recovery_clock.py",
    "recovery/driver/slots.py",
    "recovery/driver/savepoints.py",
    "recovery/driver/splits.py",
    "recovery/driver/spreading.py",
    "recovery/savepoints/notes.py",
    "snapshot/host/handshake.py",
    "snapshot/host/purposes.py",
}
"""Modules in these folders that decide, and do nothing else."""

INTERFACES = {"statebackend/backends/backend.py", "statebackend/stores/store.py"}
"""They name local paths in their signatures, and do nothing with them."""


def modules() -> list[Path]:
    return sorted(path for package in ALLOWED for path in (ROOT / package).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it."""
    return imported(ast.parse(path.read_text()))


def imported(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found.update(alias.name for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module)
            case ast.ImportFrom():
                found.add("a relative import")
            case _:
                pass
    return found


def wrong_way(package: str, names: set[str]) -> set[str]:
    ours = {name for name in names if name.split(".")[0] in {*ALLOWED, "tests", "examples"}}
    return {name for name in ours if name.split(".")[0] not in ALLOWED[package]}


def worldly(names: set[str]) -> set[str]:
    return {name for name in names if name.split(".")[0] in WORLD}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_from_recovery_to_snapshot_to_statebackend(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    assert wrong_way(package, imports(path)) == set()


def test_no_core_imports_spark_storage_sockets_threads_clocks_or_randomness() -> None:
    for path in modules():
        name = path.relative_to(ROOT).as_posix()
        if "/testing/" in name or name in EDGES or name in INTERFACES:
            continue
        if name.startswith(WORLDLY_FOLDERS) and name not in CORES_IN_THEM:
            continue
        assert worldly(imports(path)) == set(), f"{name} is a protocol core"


def test_every_edge_that_is_named_exists() -> None:
    assert [edge for edge in sorted(EDGES | CORES_IN_THEM) if not (ROOT / edge).exists()] == []


def test_an_import_that_points_the_wrong_way_is_noticed() -> None:
    tree = ast.parse("def f():\n    from recovery.decision import decide\n    import time")
    assert wrong_way("snapshot", imported(tree)) == {"recovery.decision"}
    assert worldly(imported(tree)) == {"time"}
