"""What differs between two environments, and what of it forbids a comparison."""

from typing import Any

import pytest

from attnprof.errors import CannotMeasureError, UsageError
from attnprof.verdicts.fingerprint import Facts, differences, flat, refuse_hard
from tests.verdicts.runs import FINGERPRINT


def facts(**changes: Any) -> Facts:
    return flat({key: value for key, value in (FINGERPRINT | changes).items() if value is not ...})


def test_equal_fingerprints_have_no_difference() -> None:
    assert differences(facts(), facts()) == ()


@pytest.mark.parametrize(
    ("changes", "weight", "group"),
    [
        ({"name": "Intel Xeon"}, "hard", "device"),
        ({"torch": "2.12.0"}, "hard", "torch"),
        ({"torch": ...}, "hard", "torch"),
        ({"threads": 2}, "hard", "threads"),
        ({"driver": "580.1"}, "hard", "driver"),
        ({"governor": "powersave"}, "hard", "clocks"),
        ({"environment": {"OMP_WAIT_POLICY": "active"}}, "hard", "environment"),
        ({"memory_bytes": 2**30}, "hard", "device"),
        ({"libc": "glibc 2.40"}, "soft", None),
        ({"attnprof": "0.2.0"}, "soft", None),
        ({"a later fact": 3}, "soft", None),
    ],
)
def test_a_difference_weighs_by_what_it_moves(
    changes: dict[str, Any], weight: str, group: str | None
) -> None:
    [found] = differences(facts(), facts(**changes))
    assert found.weight == weight
    if group is None:
        refuse_hard([found], "a", "b")
        return
    with pytest.raises(CannotMeasureError, match=found.key) as refused:
        refuse_hard([found], "a", "b")
    assert f"--allow-different {group}" in refused.value.fix
    assert all(one.weight == "subject" for one in differences(facts(), facts(**changes), [group]))
    assert all(
        one.weight == "subject" for one in differences(facts(), facts(**changes), [found.key])
    )


def test_what_both_lack_and_a_comparison_needs_is_no_match() -> None:
    [found] = differences(facts(threads=...), facts(threads=...))
    assert (found.key, found.base, found.new, found.weight) == ("threads", None, None, "hard")


def test_memory_that_differs_as_from_start_to_start_is_the_same() -> None:
    more = int(FINGERPRINT["memory_bytes"]) + 10_000_000  # type: ignore[call-overload]
    assert differences(facts(), facts(memory_bytes=more)) == ()


@pytest.mark.parametrize("size", ["²", "9" * 5000, 10**400, -1, "much"])
def test_memory_of_no_size_is_another(size: Any) -> None:
    [found] = differences(facts(), facts(memory_bytes=size))
    assert (found.key, found.weight) == ("memory_bytes", "hard")


def test_nothing_of_an_unknown_name_is_allowed() -> None:
    with pytest.raises(UsageError, match="'devise'") as refused:
        differences(facts(), facts(), ["devise"])
    assert "device" in refused.value.fix
