from conveyor.testing.contracts.control_queue import ControlQueueContract


class TestControlQueue(ControlQueueContract):
    pass
