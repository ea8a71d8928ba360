import pytest
from hypothesis import given
from hypothesis import strategies as st

from generator.bucket import bucket

sizes = st.integers(0, 1 << 40)


@given(sizes)
def test_the_next_power_of_two(size: int) -> None:
    rounded = bucket(size)
    assert rounded >= size
    assert rounded & (rounded - 1) == 0
    assert rounded == 0 if size == 0 else rounded < 2 * size


@given(sizes, sizes)
def test_monotone_and_idempotent(a: int, b: int) -> None:
    low, high = sorted((a, b))
    assert bucket(low) <= bucket(high)
    assert bucket(bucket(a)) == bucket(a)


def test_negative() -> None:
    with pytest.raises(ValueError, match="-1"):
        bucket(-1)
