from conveyor.testing.contracts.work import WorkContract


class TestWork(WorkContract):
    pass
