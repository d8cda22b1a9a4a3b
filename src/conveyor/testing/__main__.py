"""`python -m conveyor.testing`: the `conveyor` command, with the engines that are for tests."""

from conveyor.cli.main import main
from conveyor.testing.shared.scheme import add_shared_scheme

if __name__ == "__main__":
    add_shared_scheme()
    main()
