"""tests/unit mirrors src: `domain/test_run.py` tests `domain/run.py`.

Where a module has several files of tests, their names continue its name: `test_ingest_faults.py`.
A file named after its folder tests the package: `adapters/files/test_files.py`.
"""

from pathlib import Path

import conveyor

SOURCE = Path(conveyor.__file__).parent
UNIT = Path(__file__).parents[1] / "unit"

# Files that test nothing in src, and why they are unit tests all the same.
EXCEPTIONS = {
    "test_peers_report.py": "tests benchmarks/peers, which is no part of the package",
}


def test_every_file_mirrors_a_module_or_package() -> None:
    files = {str(path.relative_to(UNIT)): path for path in UNIT.rglob("test_*.py")}
    unplaced = {name for name, path in files.items() if not _has_a_source(path)}
    assert sorted(unplaced - EXCEPTIONS.keys()) == []
    assert sorted(EXCEPTIONS.keys() - unplaced) == [], "no longer needed"


def test_helpers_of_tests_have_one_place() -> None:
    allowed = {"__init__.py", "conftest.py"}
    offences = [
        str(path.relative_to(UNIT))
        for path in UNIT.rglob("*.py")
        if not path.name.startswith("test_") and path.name not in allowed
    ]
    assert offences == [], "move it to tests/harness"


def _has_a_source(test: Path) -> bool:
    folder = SOURCE / test.parent.relative_to(UNIT)
    words = test.stem.removeprefix("test_").split("_")
    names = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
    return folder.is_dir() and any(
        (folder / f"{name}.py").exists() or (folder / name).is_dir() or name == folder.name
        for name in names
    )
