from conveyor.testing.contracts.bodies import BodiesContract, SharedBodiesContract


class TestBodies(BodiesContract):
    pass


class TestSharedBodies(SharedBodiesContract):
    pass
