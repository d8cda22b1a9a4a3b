from conveyor.testing.contracts.control_queue import ControlQueueContract, DeadLettersContract
from conveyor.testing.contracts.metadata import MetadataContract


class TestMetadata(MetadataContract):
    pass


class TestControlQueue(ControlQueueContract):
    pass


class TestDeadLetters(DeadLettersContract):
    pass
