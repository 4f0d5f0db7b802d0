"""What the contributor's page adds is added, checked, and caught where it is wrong."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from attnprof import positions, variants  # noqa: E402 - after torch was found
from attnprof.backends import BACKENDS, masks  # noqa: E402
from attnprof.measured import Check  # noqa: E402
from attnprof.patterns import pattern_of  # noqa: E402
from attnprof.workload import Workload  # noqa: E402
from attnprof.workloads import build_operation  # noqa: E402
from attnprof.workloads.positions import SCHEMES  # noqa: E402
from tests.test_variants import (  # noqa: E402
    test_attended_pairs_and_visible_keys_are_those_the_mask_allows as holds_in_pairs,
)

pytestmark = pytest.mark.torch

PAGE = Path(__file__).parent.parent / "docs" / "contributing.md"
TABLES: tuple[dict[str, Any], ...] = (variants.VARIANTS, positions.POSITIONS, SCHEMES, BACKENDS)
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
_MODULE = re.compile(r"# attnprof/(?P<path>[a-z_/]+)\.py\n")


@pytest.fixture
def section(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Runs the examples of a section in order and gives their names; the tables are put back.

    An example that begins with a path is the file of that path.
    """
    kept = [dict(table) for table in TABLES]

    def run(title: str) -> dict[str, Any]:
        text = PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
        names: dict[str, Any] = {"__name__": "contributed"}
        monkeypatch.setitem(sys.modules, "contributed", ModuleType("contributed"))
        blocks = _BLOCK.findall(text)
        assert len(blocks) >= 2
        for block in blocks:
            found = _MODULE.match(block)
            if found is None:
                exec(compile(block, f"{PAGE.name}: {title}", "exec"), names)
            else:
                module = ModuleType("attnprof." + found["path"].replace("/", "."))
                monkeypatch.setitem(sys.modules, module.__name__, module)
                exec(compile(block, found["path"], "exec"), vars(module))
                names[found["path"]] = module
        return names

    yield run
    for table, before in zip(TABLES, kept, strict=True):
        table.clear()
        table.update(before)


def checked(**axes: Any) -> Check:
    usual: dict[str, Any] = {"backend": "eager", "q_len": 24, "kv_len": 24}
    return build_operation(Workload(**usual | axes), torch.device("cpu"), seed=0).check()


def test_the_variant_of_the_page_is_counted_masked_and_drawn(section: Any) -> None:
    section("A variant")
    holds_in_pairs()  # of every variant in the table, the new one too
    pattern = pattern_of("strided", {"window_len": 4}, kv_len=24)
    assert "".join(row.cells for row in pattern.rows()).count("█") == pattern.num_pairs
    for backend in ("eager", "math", "flash"):
        assert checked(backend=backend, variant="strided", window_len=4).passed
    decode = {"phase": "decode", "q_len": 1, "kv_cache": "static"}
    assert checked(**decode, variant="strided", window_len=4).passed


def test_a_closed_form_that_is_off_by_one_is_caught(
    section: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    strided = section("A variant")["Strided"]
    right = strided.attended_pairs
    monkeypatch.setattr(strided, "attended_pairs", lambda *args: right(*args) + (args[2] > 9))
    with pytest.raises(AssertionError):
        holds_in_pairs()


def test_a_kernel_that_masks_otherwise_is_caught(
    section: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    section("A variant")
    causal = Workload(backend="eager", q_len=24, kv_len=24)
    mask = masks.allowed(causal, torch.device("cpu"))
    monkeypatch.setattr("attnprof.backends.eager.allowed", lambda *args: mask)
    assert not checked(variant="strided", window_len=4).passed


def test_the_position_of_the_page_is_added_to_scores_and_a_wrong_one_is_caught(
    section: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kerple = section("A position scheme")["Kerple"]
    assert positions.POSITIONS["kerple"].acts == "scores"
    assert checked(position="kerple").passed
    right = kerple.constant_bias
    monkeypatch.setattr(kerple, "constant_bias", lambda *args: right(*args) * 1.01)
    assert not checked(position="kerple").passed
    monkeypatch.setattr(kerple, "constant_bias", lambda *args: None)
    assert not checked(position="kerple").passed


def test_the_backend_of_the_page_is_checked_and_one_that_forgets_to_shrink_is_caught(
    section: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = section("A backend")["backends/blocked"]
    assert checked(backend="blocked", q_len=130, kv_len=130).passed
    monkeypatch.setattr(torch.Tensor, "exp", lambda x: torch.exp(x.clamp(min=-0.5)))
    assert module.BLOCK_LEN < 130
    assert not checked(backend="blocked", q_len=130, kv_len=130).passed


def test_the_page_leaves_the_tables_as_they_were(section: Any) -> None:
    assert not {"strided", "kerple", "blocked"} & {name for table in TABLES for name in table}
