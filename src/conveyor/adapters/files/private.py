"""Folders that other users of the machine cannot look into."""

from contextlib import suppress
from pathlib import Path

OWNER_ONLY = 0o700
OTHERS = 0o077  # every permission of the group and of everybody else


def make_private(folder: Path) -> None:
    """Make a folder for its owner alone, or close one that is open to others.

    What lies below it is then out of reach, whatever the modes it was made with.
    """
    folder.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
    with suppress(OSError):  # another's folder, or a file system without modes
        if is_open_to_others(folder):
            folder.chmod(OWNER_ONLY)


def is_open_to_others(folder: Path) -> bool:
    return bool(folder.stat().st_mode & OTHERS)
