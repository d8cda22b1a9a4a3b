"""A backup of the data folder at one moment, made beside the service that uses it.

Rows are committed after the files that they refer to. So the rows of one moment, and the files that
they refer to, are consistent if no such file is removed before it is copied. Copying may take
hours; hard links keep removed files meanwhile:

1. Removals of files wait, and the segments are not reclaimed, by locks of their folders.
2. Under the write lock of the rows, which takes milliseconds, the rows and the index of the segments
   are opened at one moment, and the segments are linked. Bodies that are in the index and not in the
   rows belong to claims of that moment: the first start on the copy removes them, as after a crash.
3. The files that the rows refer to, and all lists, are linked. Removals go on.
4. Everything is copied to a folder beside the target, synced, and renamed: a backup that was
   interrupted never looks like one. If it fails, that folder is removed.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
import structlog

from conveyor.adapters.crypto.key_files import CURRENT, OLD
from conveyor.adapters.files.blobs import DRAFT
from conveyor.adapters.segments.segment_files import SegmentFiles
from conveyor.adapters.segments.store import INDEX
from conveyor.adapters.shared.disk import PRIVATE, make_folder, own_errors, sync_folder, write_all
from conveyor.adapters.shared.folder_lock import locked
from conveyor.adapters.sqlite.database import check_schema
from conveyor.adapters.sqlite.snapshot import Snapshot, snapshot, without_commits
from conveyor.app.encryption import LINKS
from conveyor.app.storage import SEGMENTS
from conveyor.errors import RefusedToStart, Unavailable
from conveyor.settings import Settings

ENGINE = "backup"  # the name in errors
DATABASE = "conveyor.db"
MARKER = "backup.unfinished"  # in a folder that becomes a backup, until it has its name
HELD = "backup.links"  # hard links to what is being copied, in the data folder
PACKS = Path("bodies", SEGMENTS)
CHUNK = 1024 * 1024
MOST_TRIES = 20  # moments at which compaction has just unlinked a segment
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

log = structlog.get_logger()

OnProgress = Callable[[int, int], None]  # bytes copied, and all


class BackupSummary(msgspec.Struct, frozen=True):
    """What a backup holds."""

    folder: str
    files: int
    size: int
    keys: bool
    not_copied: tuple[str, ...]  # kinds of data that are kept elsewhere


class _Moment(msgspec.Struct, frozen=True):
    """The files of one moment: their length, by their path in the data folder."""

    rows: Snapshot
    index: Snapshot | None
    lengths: dict[Path, int]
    keys: dict[str, bytes]


def back_up(
    settings: Settings, target: Path, *, with_keys: bool, on_progress: OnProgress
) -> BackupSummary:
    """Copy the data folder, as it is at one moment, to a folder that does not exist yet."""
    folder = settings.folder
    _check(settings, target)
    with own_errors(ENGINE), ExitStack() as stack:
        draft = stack.enter_context(_draft(target))
        held = stack.enter_context(_links(folder))
        if (folder / PACKS).exists():
            stack.enter_context(locked(folder / PACKS, shared=True))
        moment = _take(folder, held, stack, with_keys=with_keys)
        files, size = _Copy(moment, held, draft, on_progress).make()
        draft.rename(target)
        sync_folder(target.parent)
        (target / MARKER).unlink()  # not earlier: the next backup must know what this one left
    return BackupSummary(str(target), files, size, bool(moment.keys), _kept_elsewhere(settings))


def _kept_elsewhere(settings: Settings) -> tuple[str, ...]:
    """Kinds of data that the settings keep outside the data folder."""
    inside = settings.folder.resolve()
    found = []
    for kind in ("bodies", "blobs"):
        scheme, _, given = getattr(settings, kind).partition(":")
        address = given.partition("?")[0]
        if scheme == "s3" or (address and Path(address).resolve() != inside):
            found.append(kind)
    return tuple(found)


def remove_links(folder: Path) -> None:
    """Remove what a backup left that was killed, unless one is under way."""
    held = folder / HELD
    try:
        with locked(held, wait=False) as is_mine:
            if is_mine:
                shutil.rmtree(held)
    except FileNotFoundError:
        pass
    except OSError as error:  # perhaps of another user; the service can do without
        hint = f"remove {held}: removed files in it still take space"
        log.warning("backup.links.left", folder=str(held), error=str(error), hint=hint)


def _check(settings: Settings, target: Path) -> None:
    folder = settings.folder
    for kind in ("metadata", "tasks", "control_queue"):
        if (given := getattr(settings, kind)) != "sqlite:":
            scheme = given.partition(":")[0]
            raise RefusedToStart(
                f"`conveyor backup` copies a data folder, and {kind} is in {scheme}: back that up "
                "with its own tools"
            )
    if not (folder / DATABASE).exists():
        raise RefusedToStart(f"there is no data of Conveyor in {folder}: name it with --data")
    check_schema(folder / DATABASE)
    inside = folder.resolve()
    if inside in (target.resolve(), *target.resolve().parents):
        raise RefusedToStart(f"the backup must be outside the data folder {folder}, got {target}")
    if target.exists():
        raise RefusedToStart(f"{target} exists: name a folder that does not")


@contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """A private folder beside the target, to be renamed to it; removed if that fails."""
    draft = target.with_name(f"{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir(mode=0o700)
    except FileExistsError:
        is_ours = (draft / MARKER).is_file() or (draft.is_dir() and not any(draft.iterdir()))
        if not is_ours:
            raise RefusedToStart(
                f"{draft} exists and is not an unfinished backup: remove it or name another target"
            ) from None
    except OSError as error:
        raise RefusedToStart(
            f"{target} cannot be created: {error.strerror}: name a folder on a disk that you may "
            "write to"
        ) from None
    with locked(draft, wait=False) as is_mine:
        if not is_mine:
            raise RefusedToStart(f"another backup to {target} is under way: wait for its end")
        (draft / MARKER).touch(PRIVATE)
        _empty(draft, but=MARKER)
        try:
            yield draft
        except BaseException:  # Ctrl-C too: it may hold keys
            shutil.rmtree(draft, ignore_errors=True)
            raise


@contextmanager
def _links(folder: Path) -> Iterator[Path]:
    """An empty folder for hard links, which one backup has at a time."""
    held = folder / HELD
    _make(held, owner=folder)
    with locked(held, wait=False) as is_mine:
        if not is_mine:
            raise RefusedToStart(f"another backup of {folder} is under way: wait for its end")
        _empty(held)
        try:
            yield held
        finally:
            shutil.rmtree(held, ignore_errors=True)


def _make(new: Path, *, owner: Path) -> None:
    """Make a folder that the service's user can remove, also if root makes the backup."""
    new.mkdir(mode=0o700, exist_ok=True)
    if os.geteuid() == 0:
        of = owner.stat()
        os.chown(new, of.st_uid, of.st_gid)


def _empty(folder: Path, *, but: str = "") -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != but:
            path.unlink()


def _take(folder: Path, held: Path, stack: ExitStack, *, with_keys: bool) -> _Moment:
    """Open the rows at one moment, and link the files that belong to it."""
    with ExitStack() as gates:
        for part in ("bodies", "blobs"):
            if (folder / part).exists():
                gates.enter_context(locked(folder / part))
        moment = _open(folder, held, stack, with_keys=with_keys)
        for path in _single_files(folder, moment.rows):
            with suppress(FileNotFoundError):  # gone by that moment: its run is deleted or expired
                moment.lengths[path] = _link(folder, held, path)
    return moment


def _open(folder: Path, held: Path, stack: ExitStack, *, with_keys: bool) -> _Moment:
    for _ in range(MOST_TRIES):
        # A segment may be unlinked before it is linked.
        with ExitStack() as attempt, suppress(FileNotFoundError):
            with without_commits(folder / DATABASE):
                moment = _try_to_open(folder, held, attempt, with_keys=with_keys)
            stack.push(attempt.pop_all())
            return moment
    raise Unavailable(f"{ENGINE}: segments are removed too fast: try again")


def _try_to_open(folder: Path, held: Path, stack: ExitStack, *, with_keys: bool) -> _Moment:
    rows = stack.enter_context(snapshot(folder / DATABASE))
    index, lengths = None, dict[Path, int]()
    if (folder / PACKS / INDEX).exists():
        index = stack.enter_context(snapshot(folder / PACKS / INDEX))
        files = SegmentFiles(PACKS, sync=False)
        for number, covered in index.segments().items():
            path = files.path(number)
            _link(folder, held, path)
            lengths[path] = covered
    named = (CURRENT, OLD, LINKS) if with_keys else ()
    keys = {name: (folder / name).read_bytes() for name in named if (folder / name).exists()}
    return _Moment(rows, index, lengths, keys)


def _single_files(folder: Path, rows: Snapshot) -> Iterator[Path]:
    """Results that are files, and lists and exports that are whole."""
    for name in rows.file_bodies():
        yield Path("bodies", name)
    for parent, _, names in os.walk(folder / "blobs"):
        for name in names:
            if not name.startswith(DRAFT):
                yield Path(parent, name).relative_to(folder)


def _link(folder: Path, held: Path, path: Path) -> int:
    """Link a file; return its length."""
    link = held / path
    try:
        os.link(folder / path, link)
    except FileExistsError:  # several rows share a result
        pass
    except FileNotFoundError:
        if link.parent.exists():
            raise
        for parent in reversed(path.parents[:-1]):
            _make(held / parent, owner=folder)
        os.link(folder / path, link)
    return link.stat().st_size


class _Copy:
    """The copy of a moment."""

    def __init__(self, moment: _Moment, held: Path, draft: Path, on_progress: OnProgress) -> None:
        self._moment, self._held, self._draft = moment, held, draft
        self._on_progress = on_progress
        databases = [moment.rows, moment.index] if moment.index else [moment.rows]
        self._size = sum(one.size for one in databases) + sum(moment.lengths.values())
        self._files = len(databases) + len(moment.lengths) + len(moment.keys)
        self._done = 0

    def make(self) -> tuple[int, int]:
        """Copy everything, durably; return how many files and bytes."""
        # First, because the service cannot checkpoint its log meanwhile.
        self._database(self._moment.rows, Path(DATABASE))
        if self._moment.index:
            self._database(self._moment.index, PACKS / INDEX)
        for name, key in self._moment.keys.items():
            self._write(Path(name), iter([key]))
        for path, length in self._moment.lengths.items():
            self._file(path, length)
        for folder, _, _ in os.walk(self._draft):
            sync_folder(Path(folder))
        return self._files, self._size

    def _database(self, source: Snapshot, path: Path) -> None:
        copy = self._draft / path
        make_folder(copy.parent, sync=False)
        before = self._done
        source.copy_to(copy, lambda done: self._report(before + done))

    def _file(self, path: Path, length: int) -> None:
        with (self._held / path).open("rb", buffering=0) as source:

            def content() -> Iterator[bytes]:
                left = length
                while left and (chunk := source.read(min(CHUNK, left))):
                    left -= len(chunk)
                    yield chunk
                    self._report(self._done + len(chunk))
                if left:
                    raise Unavailable(
                        f"{ENGINE}: {path} is damaged: {left} of its {length} bytes are missing; "
                        "`conveyor doctor` tells which results that concerns"
                    )

            self._write(path, content())
        (self._held / path).unlink()  # its space may be needed

    def _write(self, path: Path, content: Iterator[bytes]) -> None:
        copy = self._draft / path
        make_folder(copy.parent, sync=False)
        descriptor = os.open(copy, NEW, PRIVATE)
        try:
            for chunk in content:
                write_all(descriptor, chunk)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _report(self, done: int) -> None:
        self._done = done
        self._on_progress(self._done, self._size)
