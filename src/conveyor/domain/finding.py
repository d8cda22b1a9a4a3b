"""What a look at the stored state brings to light, and how bad it is."""

from enum import StrEnum

import msgspec

from conveyor.domain.ids import JobId, RunId, TaskId


class Severity(StrEnum):
    WRONG = "wrong"  # a person has to act
    REPAIR = "repair"  # the sweeper will see to it
    NOTE = "note"  # worth knowing, and nothing to do


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """A step that somebody died before, or in the middle of, and that the sweeper makes happen."""

    action: str  # as the sweeper counts it
    mark: str  # the same as long as the same thing stands the same way
    what: str  # for a person
    job_id: JobId | None = None
    run_id: RunId | None = None
    task_id: TaskId | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True, tag="finding", tag_field="event"):
    """One thing that is not as it should be: where, what, and what to do."""

    severity: Severity
    code: str
    what: str
    advice: str = ""
    job_id: JobId | None = None
    run_id: RunId | None = None
    task_id: TaskId | None = None


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress", tag_field="event"):
    """How far the look at one run is."""

    job_id: JobId
    run_id: RunId
    rows: int = 0
    bodies: int = 0
    total: int = 0


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be looked at: everything, or one job, or one run of it."""

    job_id: JobId | None = None
    run_id: RunId | None = None
    bodies: bool = True  # read every body, to compare it with its checksum


class Surroundings(msgspec.Struct, frozen=True, kw_only=True, tag="about", tag_field="event"):
    """Where the state lies, and by which settings it is looked at; secrets are blotted out."""

    version: str
    running: bool  # whether a service told it, or the folder was opened at rest
    folder: str
    free: int  # bytes of room
    size: int
    settings: dict[str, str]


class Checked(msgspec.Struct, frozen=True, kw_only=True, tag="checked", tag_field="event"):
    """What was looked at in all, and what was found."""

    jobs: int = 0
    runs: int = 0
    rows: int = 0
    bodies: int = 0
    wrong: int = 0
    repairs: int = 0
    notes: int = 0


Event = Finding | Progress | Surroundings | Checked
