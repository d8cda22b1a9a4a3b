"""The package: its name and version, and each way to install and run it in a clean environment."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
from packaging.version import Version

import conveyor
from conveyor import __main__ as command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MOST_INSTALLED = 150 << 20  # bytes of what `make demo` installs, pip included
PACKED = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt")
TOOLS = ("build==1.6.1", "pipx==1.18.4", "uv==0.13.8")
VERSION = "9.8.7"
WITHIN = 900.0  # seconds: an index may be slow


def test_the_fallback_of_the_version_is_the_same_everywhere() -> None:
    fallback = PROJECT["tool"]["hatch"]["version"]["fallback-version"]
    for path in ("src/conveyor/__init__.py", "Dockerfile"):
        text = (ROOT / path).read_text(encoding="utf-8")
        assert re.findall(r'(?:__version__ = "|ARG VERSION=)([\w.]+)', text) == [fallback]
    assert conveyor.__version__


def test_the_version_of_an_image_is_a_version_of_python_or_is_not_given(tmp_path: Path) -> None:
    [command] = re.findall(
        r"VERSION=\$\((.*?)\)", (ROOT / "Dockerfile").read_text(encoding="utf-8")
    )
    commit = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty"]
    for step in (["git", "init", "-q"], [*commit, "-m", "one"], ["git", "tag", f"v{VERSION}"]):
        subprocess.run(step, cwd=tmp_path, check=True)
    described = partial(
        subprocess.run, command.split(), cwd=tmp_path, capture_output=True, text=True
    )
    assert str(Version(described().stdout)) == VERSION
    subprocess.run([*commit, "-m", "two"], cwd=tmp_path, check=True)
    assert not described().stdout


def test_commands_that_install_the_package_name_it_and_an_extra_it_has() -> None:
    extras = PROJECT["project"]["optional-dependencies"].keys()
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    sources = [*(ROOT / "src").rglob("*.py"), *pages]
    told = {
        name
        for path in sources
        for name in re.findall(r"(?:pip|pipx) install '([^']*)'", path.read_text(encoding="utf-8"))
    }
    assert told
    assert told <= {f"{PROJECT['project']['name']}[{extra}]" for extra in extras}


def test_both_commands_of_the_package_are_the_same_program() -> None:
    scripts = PROJECT["project"]["scripts"]
    assert scripts == dict.fromkeys(("conveyor", "conveyor-batch"), f"{command.__name__}:main")


@pytest.mark.parametrize(
    "tests",
    [
        "tests/unit/domain/test_json_bodies.py",
        pytest.param("tests/unit/domain", marks=pytest.mark.long),
    ],
)
def test_the_domain_works_on_an_older_patch_release_of_this_python(tests: str) -> None:
    """Extension modules load in every release of a minor version, so nothing is installed."""
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(ROOT / "src")]
    # Without the fixtures of all tests, whose drivers need other packages on older releases.
    command = [_older_python(), "-B", "-m", "pytest", "--noconftest", "-p", "no:cacheprovider"]
    settings = {"PYTHONPATH": os.pathsep.join(folders)}
    _run([*command, "-n", "0", tests], folder=ROOT, settings=settings)


def _older_python() -> str:
    minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for folder in os.get_exec_path():
        if found := shutil.which(minor, path=folder):
            asked = [found, "-c", "import sys; print(*sys.version_info[:3])"]
            told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
            if told and tuple(map(int, told.split())) < sys.version_info[:3]:
                return found
    pytest.skip(f"no {minor} on this machine is older than {sys.version.split()[0]}")


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with what people build and install packages with."""
    return _environment(tmp_path_factory.mktemp("tools"), *TOOLS)


@pytest.fixture(scope="module")
def dist(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of a tagged commit, and the wheel that is built from it."""
    tree = _tree(tmp_path_factory.mktemp("tree"))
    identity = ("-c", "user.name=Conveyor", "-c", "user.email=conveyor@example.com")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"], ["tag", f"v{VERSION}"]):
        _run(["git", *identity, *words], folder=tree)
    made = tmp_path_factory.mktemp("dist")
    _run([tools / "python", "-m", "build", "--outdir", made, tree])
    return made


@pytest.mark.long
def test_the_version_is_the_tag(dist: Path) -> None:
    assert sorted(path.name for path in dist.iterdir()) == [
        f"conveyor_batch-{VERSION}-py3-none-any.whl",
        f"conveyor_batch-{VERSION}.tar.gz",
    ]


@pytest.mark.long
def test_the_version_without_git_is_the_fallback(tools: Path, tmp_path: Path) -> None:
    tree = _tree(tmp_path / "tree")
    _run([tools / "python", "-m", "build", "--wheel", "--outdir", tmp_path, tree])
    fallback = PROJECT["tool"]["hatch"]["version"]["fallback-version"]
    assert [path.name for path in tmp_path.glob("*.whl")] == [
        f"conveyor_batch-{fallback}-py3-none-any.whl"
    ]


@pytest.mark.long
def test_the_wheel_has_every_file_of_the_package(dist: Path) -> None:
    [wheel] = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    found = (path for path in (ROOT / "src" / "conveyor").rglob("*") if path.is_file())
    paths = (path.relative_to(ROOT / "src") for path in found if "__pycache__" not in path.parts)
    wanted = {str(path) for path in paths}
    pages = {f"conveyor/api/assets/{name}.html" for name in ("dashboard", "docs")}
    assert pages <= wanted <= names


@pytest.mark.long
def test_the_wheel_runs_in_a_clean_environment(dist: Path, tmp_path: Path) -> None:
    [wheel] = dist.glob("*.whl")
    programs = _environment(tmp_path / "clean", f"{wheel}[demo]")
    files = [path for path in (tmp_path / "clean").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_INSTALLED
    _check([programs / "conveyor"], tmp_path)


@pytest.mark.long
def test_the_extras_bring_the_drivers_of_their_engines(dist: Path, tmp_path: Path) -> None:
    [wheel] = dist.glob("*.whl")
    extras = ",".join(PROJECT["project"]["optional-dependencies"].keys() - {"dev"})
    programs = _environment(tmp_path / "clean", f"{wheel}[{extras}]")
    _run([programs / "python", "-c", "import asyncpg, botocore, obstore, redis, zenrows"])


@pytest.mark.long
def test_uvx_runs_it(dist: Path, tools: Path, tmp_path: Path) -> None:
    settings = {
        "UV_FIND_LINKS": str(dist),
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "UV_PYTHON": sys.executable,
    }
    _check([tools / "uvx", "conveyor-batch[demo]"], tmp_path, settings)


@pytest.mark.long
def test_pipx_runs_it(dist: Path, tools: Path, tmp_path: Path) -> None:
    links = f"{dist} {os.environ.get('PIP_FIND_LINKS', '')}".strip()
    settings = {
        "PIP_FIND_LINKS": links,
        "UV_FIND_LINKS": str(dist),  # it installs with uv where there is one
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "PIPX_HOME": str(tmp_path / "home"),
        "PIPX_BIN_DIR": str(tmp_path / "bin"),
        "PIPX_DEFAULT_PYTHON": sys.executable,
    }
    _check([tools / "pipx", "run", "conveyor-batch[demo]"], tmp_path, settings)
    _run([tools / "pipx", "install", "conveyor-batch"], settings=settings)
    told = _run([tmp_path / "bin" / "conveyor", "--version"])
    assert told == f"conveyor {VERSION}\n"


def _check(command: Sequence[str | Path], folder: Path, settings: Mapping[str, str] = {}) -> None:
    """The command shows its version, and its demo accounts for every URL."""
    told = _run([*command, "--version"], folder=folder, settings=settings)
    assert told == f"conveyor {VERSION}\n"
    told = _run([*command, "demo", "--urls", "100"], folder=folder, settings=settings)
    assert "every URL accounted for" in told
    assert len(list((folder / "demo" / "pages").iterdir())) == 98


def _tree(folder: Path) -> Path:
    """A copy of what the package is built from."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored, dirs_exist_ok=True)
    for name in PACKED:
        shutil.copy(ROOT / name, folder)
    return folder


def _environment(folder: Path, *packages: str) -> Path:
    """A new environment with these packages, from the package index; where its programs are."""
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    _run([programs / "python", "-m", "pip", "install", "--quiet", *packages])
    return programs


def _run(
    command: Sequence[str | Path],
    *,
    folder: Path | None = None,
    settings: Mapping[str, str] = {},
) -> str:
    # Nothing of this project may be found by its path.
    ours = {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME"}
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**inherited, **settings},
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
