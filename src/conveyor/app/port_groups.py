"""Groups of ports that steps take.

Most steps take the same few ports. The `TypedDict`s name these groups, and a step takes one with
`**`. mypy knows the keys of a `TypedDict`, so it still reports an argument that is missing, unknown
or of the wrong type.
"""

from typing import TypedDict

from conveyor.app.engines import Stores
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.metadata import Metadata
from conveyor.ports.tasks import Tasks
from conveyor.ports.work import Work


class BasePorts(TypedDict):
    metadata: Metadata
    clock: Clock


class RowPorts(BasePorts):
    """For steps that create rows."""

    ids: Ids


class TaskRowPorts(RowPorts):
    """For steps that create or settle tasks."""

    tasks: Tasks
    work: Work


def base_ports(stores: Stores) -> BasePorts:
    return {"metadata": stores.metadata, "clock": stores.clock}


def row_ports(stores: Stores) -> RowPorts:
    return {**base_ports(stores), "ids": stores.ids}


def task_row_ports(stores: Stores) -> TaskRowPorts:
    return {**row_ports(stores), "tasks": stores.tasks, "work": stores.work}
