from conveyor.testing.contracts.duties import DutiesContract


class TestDuties(DutiesContract):
    pass
