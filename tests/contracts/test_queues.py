from conveyor.testing.contracts.queues import QueuesContract


class TestQueues(QueuesContract):
    pass
