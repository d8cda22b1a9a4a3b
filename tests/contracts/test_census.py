from conveyor.testing.contracts.census import CensusContract


class TestCensus(CensusContract):
    pass
