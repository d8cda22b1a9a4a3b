"""What a command loads: `conveyor jobs` is a client, and must start like one."""

import json
import os
import subprocess
import sys

# Of the server, its engines and the asynchronous client.
ABSENT = {"aiohttp", "apsw", "asyncio", "cryptography", "rich", "starlette", "uvicorn"}
MOST_MODULES = 350  # 312 on Python 3.11; 733 when commands loaded the server
LISTED = """
import json, sys
from conveyor.cli.main import main
sys.argv = ["conveyor", "jobs", "--url", "http://127.0.0.1:1/v1"]
try:
    main()
except SystemExit as end:
    assert end.code == 1, end.code
print(json.dumps(sorted(sys.modules)))
"""


def test_a_command_loads_no_server_and_few_modules() -> None:
    environ = {name: value for name, value in os.environ.items() if "CONVEYOR" not in name}
    told = subprocess.run(
        [sys.executable, "-c", LISTED], capture_output=True, text=True, check=True, env=environ
    )
    loaded = json.loads(told.stdout)
    assert ABSENT & {name.partition(".")[0] for name in loaded} == set()
    assert len(loaded) <= MOST_MODULES


INTERRUPTED = """
import sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "conveyor.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from conveyor.__main__ import main
main()
"""


def test_an_interrupt_while_modules_are_loaded_ends_the_command_without_a_traceback() -> None:
    told = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, check=False)
    assert (told.returncode, told.stdout, told.stderr) == (130, b"", b"")
