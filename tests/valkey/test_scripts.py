"""The token bucket in Lua is the one of the domain."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.adapters.redis.scripts import TAKE
from conveyor.domain.concurrency import Bucket, allowance, take_one
from tests.harness.valkey import Valkey, a_prefix
from tests.seed import examples

# What would depend on the time that passes meanwhile, and what stands in for it.
REPLACED = {
    "redis.call('TIME')": "{ARGV[3], ARGV[4]}",
    "redis.call('PEXPIRE', KEYS[1],": "redis.call('SET', KEYS[1] .. ':expiry',",
}
NOON = 1_772_445_600  # in seconds since 1970, of the size that a server's clock has

times = st.lists(st.integers(0, 10_000_000), min_size=1, max_size=20)  # between calls, in µs
rates = st.floats(0.01, 10_000)
bursts = st.integers(1, 100_000)


@settings(max_examples=examples(100))
@given(pauses=times, rate=rates, burst=bursts)
def test_tokens_are_granted_as_by_the_domain(
    valkey: Valkey, pauses: list[int], rate: float, burst: int
) -> None:
    script = TAKE.source
    for original, replacement in REPLACED.items():
        assert original in script
        script = script.replace(original, replacement)
    key, now, bucket = a_prefix(), NOON * 1_000_000, None
    with valkey.client() as client:
        for pause in pauses:
            now += pause
            seconds, microseconds = divmod(now, 1_000_000)
            [granted, tokens] = client.eval(script, 1, key, rate, burst, seconds, microseconds)
            at = seconds + microseconds / 1_000_000
            bucket, expected = take_one(bucket, at, rate=rate, burst=burst)
            assert bucket == Bucket(float(tokens), at)
            found = allowance(float(tokens), granted=bool(granted), rate=rate, burst=burst)
            assert found == expected
            # A bucket is kept until it is full again.
            assert int(client.get(f"{key}:expiry")) == math.ceil(expected.full_in * 1000)
        client.delete(key, f"{key}:expiry")
