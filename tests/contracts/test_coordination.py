from conveyor.testing.contracts.coordination import CoordinationContract


class TestCoordination(CoordinationContract):
    pass
