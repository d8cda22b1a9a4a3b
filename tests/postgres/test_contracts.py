from conveyor.testing.contracts.control_queue import ControlQueueContract, DeadLettersContract
from conveyor.testing.contracts.histories import HistoriesContract
from conveyor.testing.contracts.metadata import MetadataContract
from conveyor.testing.contracts.tasks import TasksContract
from conveyor.testing.contracts.work import WorkContract


class TestMetadata(MetadataContract):
    pass


class TestControlQueue(ControlQueueContract):
    pass


class TestDeadLetters(DeadLettersContract):
    pass


class TestTasks(TasksContract):
    pass


class TestWork(WorkContract):
    pass


class TestHistories(HistoriesContract):
    pass
