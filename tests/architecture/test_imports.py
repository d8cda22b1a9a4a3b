"""The dependency rule of the house, held by a test."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import conveyor

SOURCE = Path(conveyor.__file__).parent

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "wire": set(),
    "domain": {"errors"},
    "ports": {"errors", "domain"},
    "steps": {"errors", "domain", "ports"},
    "adapters": {"errors", "domain", "ports"},
    "loops": {"errors"},
    "settings": {"errors", "domain"},
    "settings_loader": {"errors", "domain", "settings"},
    "telemetry": {"errors", "domain", "ports", "loops"},
    "timekeeping": {"errors", "ports", "loops"},
    "api": {"errors", "domain", "ports", "steps", "telemetry", "wire", "__version__"},
    # It runs in other people's programs, and knows the service by its wire alone.
    "client": {"errors", "wire", "__version__"},
    "mock_gateway": {"domain"},
}
# Pure libraries: they compute, and touch nothing.
DOMAIN_MAY_USE = {"msgspec", "can_ada", "backports", "compression", "protego"}
STANDARD_AND_PURE = {
    "base64", "bisect", "collections", "csv", "dataclasses", "datetime", "difflib", "enum", "functools", "hashlib", "hmac", "http", "ipaddress", "itertools", "math", "re", "struct", "sys", "typing", "zlib", "zoneinfo",
}  # fmt: skip
# Only these know every part.
KNOW_ALL = {
    "app",
    "cli",
    "testing",
    "__main__",
    "__init__",
}


def test_each_layer_imports_only_what_lies_below_it() -> None:
    offences = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path, layer in _modules()
        if layer not in KNOW_ALL
        for name in sorted(_layers_used(path) - MAY_IMPORT[layer] - {layer})
    ]
    assert offences == []


def test_the_program_does_not_import_what_is_for_tests() -> None:
    offences = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path, layer in _modules()
        if layer != "testing"
        for name in _imports(path)
        if name.startswith("conveyor.testing") or name.split(".")[0] == "tests"
    ]
    assert offences == []


def test_only_composition_and_tools_for_tests_name_adapters() -> None:
    offences = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path, layer in _modules()
        if layer not in {"adapters", "app", "testing"}
        for name in _imports(path)
        if name.startswith("conveyor.adapters")
    ]
    assert offences == []


def test_every_module_has_its_place_in_the_rule() -> None:
    assert {layer for _, layer in _modules()} == MAY_IMPORT.keys() | KNOW_ALL


def test_the_domain_uses_nothing_that_touches_the_world() -> None:
    offences = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path, layer in _modules()
        if layer == "domain"
        for name in sorted(_roots(path) - {"conveyor"} - DOMAIN_MAY_USE - STANDARD_AND_PURE)
    ]
    assert offences == []


def test_the_client_brings_nothing_but_its_http_library() -> None:
    allowed = sys.stdlib_module_names | {"conveyor", "aiohttp", "yarl", "msgspec"}
    offences = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path, layer in _modules()
        if layer == "client"
        for name in sorted(_roots(path) - allowed)
    ]
    assert offences == []


def test_every_progress_bar_leaves_stdout_alone() -> None:
    """`rich.progress.Progress` redirects stdout unless told otherwise; `cli/bars.py` tells it."""
    offences = [
        str(path.relative_to(SOURCE))
        for path, _ in _modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "rich.progress"
        if any(name.name == "Progress" for name in node.names)
    ]
    assert offences == ["cli/bars.py"]


def test_no_adapter_imports_another_adapter() -> None:
    offences = []
    for path, layer in _modules():
        if layer != "adapters" or path.parent == SOURCE / "adapters":
            continue
        own = path.relative_to(SOURCE).parts[1]
        for name in _imports(path):
            parts = name.split(".")
            if parts[:2] == ["conveyor", "adapters"] and parts[2] not in {own, "shared"}:
                offences.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert offences == []


def test_a_step_imports_its_own_package_and_what_steps_share() -> None:
    """Steps hand work over by durable state, so that a process may die between any two of them."""
    offences = []
    for path, layer in _modules():
        if layer != "steps":
            continue
        own = path.relative_to(SOURCE).parts[1]
        for name in _imports(path):
            parts = name.split(".")
            if parts[:2] != ["conveyor", "steps"]:
                continue
            allowed = {own} if own == "shared" else {own, "shared"}
            if parts[2] not in allowed:
                offences.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert offences == []


WIDEST_PORT = 12  # methods


def test_ports_are_narrow() -> None:
    wide = [
        f"{path.name}: {node.name} has {len(methods)} methods"
        for path in (SOURCE / "ports").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        if len(
            methods := [
                part
                for part in node.body
                if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef))
            ]
        )
        > WIDEST_PORT
    ]
    assert wide == []


def test_functions_and_files_stay_short() -> None:
    long = []
    for path, _ in _modules():
        text = path.read_text()
        if len(text.splitlines()) > 500:
            long.append(f"{path.relative_to(SOURCE)} has {len(text.splitlines())} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > 50:
                    long.append(f"{path.relative_to(SOURCE)}: {node.name} has {length} lines")
    assert long == []


def test_nothing_reads_a_clock_or_rolls_dice_but_the_adapter_for_it() -> None:
    """Time and chance are injected; measuring a duration for a metric is telemetry's own."""
    banned = {"datetime.now", "time.time", "time.monotonic", "os.urandom", "uuid.uuid4"}
    allowed = {
        "adapters/system/clock.py",
        "adapters/crypto/key_ring.py",
        "adapters/crypto/key_files.py",
        "adapters/crypto/key_record.py",
        "adapters/crypto/root_keys.py",
    }
    offences = [
        f"{path.relative_to(SOURCE)}:{node.lineno} calls {ast.unparse(node.func)}"
        for path, layer in _modules()
        if layer not in {"cli", "client", "testing"}
        and str(path.relative_to(SOURCE)) not in allowed
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in banned
    ]
    assert offences == []


def _modules() -> Iterator[tuple[Path, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path, path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _layers_used(path: Path) -> set[str]:
    names = (name.split(".") for name in _imports(path))
    return {parts[1] if len(parts) > 1 else "__init__" for parts in names if parts[0] == "conveyor"}


def _roots(path: Path) -> set[str]:
    return {name.split(".")[0] for name in _imports(path)}


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module in {
                "conveyor",
                "conveyor.domain",
                "conveyor.api",
                "conveyor.adapters.http",
            }:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module
