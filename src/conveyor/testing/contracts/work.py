"""What every engine must do with claims."""

from conveyor.testing.contracts.acking import AckingContract
from conveyor.testing.contracts.claiming import ClaimingContract
from conveyor.testing.contracts.leasing import LeasingContract, ReleasingContract
from conveyor.testing.contracts.settling import SettlingContract


class WorkContract(
    ClaimingContract, SettlingContract, AckingContract, LeasingContract, ReleasingContract
):
    """All that the dispatcher relies on. An engine passes by giving an `engine` fixture."""
