from conveyor.testing.contracts.control_queue import ControlQueueContract, DeadLettersContract


class TestControlQueue(ControlQueueContract):
    pass


class TestDeadLetters(DeadLettersContract):
    pass
