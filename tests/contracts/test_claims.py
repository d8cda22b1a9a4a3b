from conveyor.testing.contracts.claims import ClaimsContract


class TestClaims(ClaimsContract):
    pass
