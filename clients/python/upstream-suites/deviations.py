"""The tests of other libraries that fail on token buckets, and why. docs/ has the same tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

REFILLS = "a bucket refills all the time: half a window after a full burst, half of it may be hit again"
RESETS = "an empty bucket's reset time is when the next hit passes, not when a window is over"
NO_PREVIOUS = "a bucket has one level, no previous window whose weight fades"
NO_COUNTER = "the key of a counter does not say the limit, and a bucket is not a counter"

DEVIATIONS = {
    "TestFixedWindow.test_fixed_window": REFILLS,
    "TestSlidingWindow.test_sliding_window_counter": REFILLS,
    "TestMovingWindow.test_moving_window": REFILLS,
    "TestMovingWindow.test_moving_window_multiple_cost": REFILLS,
    "TestMovingWindow.test_moving_window_huge_cost": REFILLS,
    "TestMovingWindow.test_moving_window_stats": RESETS,
    "TestSlidingWindow.test_sliding_window_counter_stats": RESETS,
    "TestSlidingWindow.test_sliding_window_counter_previous_window": NO_PREVIOUS,
    "TestRedisStorage.test_custom_prefix": NO_COUNTER,
}


def expect(
    deviations: dict[str, str], items: list[pytest.Item], name_of: Callable[[pytest.Item], str]
) -> None:
    """Lets these tests fail, and no others. One that passes, or is not there, is an error."""
    if unknown := deviations.keys() - {name_of(item) for item in items}:
        raise pytest.UsageError(f"deviations of tests that are not there: {sorted(unknown)}")
    for item in items:
        if reason := deviations.get(name_of(item)):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
