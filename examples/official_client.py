"""The official ZenRows client with Conveyor: only the base URL differs."""

import os
import tempfile
from pathlib import Path

from zenrows.batch import ZenRowsBatchClient

URL = os.environ.get("CONVEYOR_URL", "http://127.0.0.1:8080/v1")
KEY = os.environ.get("CONVEYOR_KEY", "my-key")

with ZenRowsBatchClient(KEY, base_url=URL) as client:
    job = client.submit_regular(
        [
            {"url": "https://ok.example/1", "external_id": "first"},
            {"url": "https://ok.example/2", "external_id": "second"},
            {"url": "https://permanent.example/3", "external_id": "third"},
        ],
        name="official client",
    )
    run = job.run.wait(timeout=120, poll_interval=0.5)
    print(run.data.status.value, run.data.stats.successful, "of", run.data.stats.total)

    again = job.retry_failed().wait(timeout=120, poll_interval=0.5)
    print("after a retry of the failed tasks:", again.data.stats.failed, "failed")

    with tempfile.TemporaryDirectory() as folder:
        again.download_to_dir(folder, use_external_id=True)
        print("saved", len(list(Path(folder).iterdir())), "pages")
    job.delete()
