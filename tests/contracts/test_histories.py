from conveyor.testing.contracts.histories import HistoriesContract


class TestHistories(HistoriesContract):
    pass
