"""How fast is a staged list read and checked, against only parsing it, and is memory flat?"""

import csv
import io
import json
import statistics
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator

from conveyor.domain.task_list.decompress import ListDecompressor
from conveyor.domain.task_list.reader import ListReader
from conveyor.domain.task_list.spec import ListFormat, ListSpec

COUNT = 500_000
ROUNDS = 5
CHUNK = 64 * 1024

Content = tuple[ListSpec, bytes, Callable[[bytes], int]]


def main() -> None:
    for name, content in _lists().items():
        _measure(name, content)
    _measure_memory()


def _lists() -> dict[str, Content]:
    urls = [f"https://example.com/{number}" for number in range(COUNT)]
    table = ListSpec(format=ListFormat.CSV, header=True, url="url", external_id="id")
    return {
        "txt": (ListSpec(format=ListFormat.TXT), _lines(urls), _split),
        "ndjson": (
            ListSpec(format=ListFormat.NDJSON),
            _lines(f'{{"url": "{url}"}}' for url in urls),
            _json_loads,
        ),
        "csv": (table, _lines(["url,id", *(f"{url},{url[20:]}" for url in urls)]), _csv_reader),
        "csv, all quoted": (
            table,
            _lines(["url,id", *(f'"{url}","{url[20:]}"' for url in urls)]),
            _csv_reader,
        ),
    }


def _lines(lines: list[str] | Iterator[str]) -> bytes:
    return "\n".join(lines).encode()


def _measure(name: str, content: Content) -> None:
    spec, raw, bare = content
    packed = zlib.compress(raw, wbits=31)
    rates, ratios = list[float](), list[float]()
    for _ in range(ROUNDS):
        ours, theirs = _taken(lambda: _read(spec, _chunks(raw))), _taken(lambda: bare(raw))
        rates.append(COUNT / ours)
        ratios.append(theirs / ours)
    unpacked = COUNT / _taken(lambda: _read(spec, _unpacked(packed)))
    print(
        f"{name:16} {statistics.median(rates):9,.0f} rows a CPU second "
        f"({min(rates):,.0f} to {max(rates):,.0f}); {unpacked:,.0f} from gzip; "
        f"{statistics.median(ratios):.2f} of the rate of {bare.__name__[1:]}"
    )


def _taken(work: Callable[[], int]) -> float:
    started = time.process_time()
    assert work() >= COUNT
    return time.process_time() - started


def _read(spec: ListSpec, chunks: Iterator[bytes]) -> int:
    reader = ListReader(spec, {})
    count = sum(len(part.tasks) for chunk in chunks for part in reader.feed(chunk))
    return count + sum(len(part.tasks) for part in reader.finish())


def _chunks(raw: bytes) -> Iterator[bytes]:
    return (raw[at : at + CHUNK] for at in range(0, len(raw), CHUNK))


def _unpacked(packed: bytes) -> Iterator[bytes]:
    stream = ListDecompressor()
    for chunk in _chunks(packed):
        yield from stream.decompress(chunk)
    yield from stream.finish()


def _split(raw: bytes) -> int:
    return len(raw.decode().split("\n"))


def _json_loads(raw: bytes) -> int:
    return sum(1 for line in raw.split(b"\n") if json.loads(line)["url"])


def _csv_reader(raw: bytes) -> int:
    return sum(1 for row in csv.reader(io.StringIO(raw.decode(), newline="")) if row[0])


def _measure_memory() -> None:
    lines = (b"https://example.com/%d\n" % number for number in range(COUNT))
    tracemalloc.start()
    _read(ListSpec(format=ListFormat.TXT), lines)
    print(f"memory: {tracemalloc.get_traced_memory()[1] / 1e6:.1f} MB at most for {COUNT} rows")
    tracemalloc.stop()


if __name__ == "__main__":
    main()
