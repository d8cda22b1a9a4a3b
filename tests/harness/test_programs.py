"""Programs of tests that run at the same time keep out of each other's way."""

from concurrent.futures import ProcessPoolExecutor

from conveyor.testing.local.ports import free_port


def test_no_port_is_given_twice_while_its_program_is_still_starting() -> None:
    with ProcessPoolExecutor(3) as processes:
        given = [port for ports in processes.map(_ports, [300] * 3) for port in ports]

    assert len(set(given)) == len(given)


def _ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]
