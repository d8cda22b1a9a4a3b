"""What a look at the stored state brings to light."""

import msgspec

from conveyor.domain.ids import JobId, RunId, TaskId


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """A step that somebody died before, or in the middle of, and that the sweeper makes happen."""

    action: str  # as the sweeper counts it
    mark: str  # the same as long as the same thing stands the same way
    what: str  # for a person
    job_id: JobId | None = None
    run_id: RunId | None = None
    task_id: TaskId | None = None
