from dataclasses import fields

import pytest

from attnprof.axes import AXES
from attnprof.backends.support import BACKENDS, Backend
from attnprof.doctor import Spread
from attnprof.errors import UsageError
from attnprof.listing import ABILITIES, abilities_table, backends_table, spreads_table
from attnprof.shelf import KINDS, shelf_tables


def test_what_cannot_be_measured_says_why() -> None:
    for kind in ("cpu", "cuda", "mps", "synthetic"):
        rows = abilities_table(kind).rows
        named = {row["what"] for row in rows}
        assert {f"backend {name}" for name in BACKENDS} <= named
        assert all(row["how"] for row in rows if not row["can"])
    by_name = {row["what"]: row for row in abilities_table("cpu").rows}
    assert by_name["backend flash"]["can"]
    assert by_name["backend cudnn"]["how"] == "cudnn does not run on cpu"


def test_the_shelf_has_every_axis_and_every_backend() -> None:
    assert [row["name"] for table in shelf_tables("axes") for row in table.rows] == list(AXES)
    assert {row["name"] for row in shelf_tables("backends")[0].rows} == set(BACKENDS)


def test_what_a_kernel_takes_is_said_of_every_ability_and_with_where_if_not_everywhere() -> None:
    named = {field.name for field in fields(Backend) if field.name.endswith("_on")}
    assert set(ABILITIES) == named
    takes = {str(row["name"]): str(row["takes"]).split(", ") for row in backends_table().rows}
    assert {"mask", "bias", "soft cap", "sink logits", "value widths"} <= set(takes["eager"])
    assert "mask (cpu)" in takes["flash"]
    assert "soft cap" not in takes["math"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_of_a_kind_is_shown_alone_and_a_typo_is_answered(kind: str) -> None:
    listed = shelf_tables(kind)[0].rows
    name = str(listed[0]["name"])
    explained = shelf_tables(kind, name)
    assert all(table.rows for table in explained)
    with pytest.raises(UsageError):
        shelf_tables(kind, f"{name}-no-such")


def test_the_median_launch_is_the_one_that_is_shown() -> None:
    table = spreads_table([Spread("w", "wall", (3.0, 1.0, 2.0), 0.1)], 3)
    assert table.rows[0]["median_s"] == 2.0


@pytest.mark.parametrize("kind", ["gpus", "prices"])
def test_the_words_on_how_figures_are_known_are_explained_under_their_table(kind: str) -> None:
    (table,) = shelf_tables(kind)
    key = "verified" if kind == "gpus" else "basis"
    for word in {str(row[key]) for row in table.rows}:
        assert f"{word}, " in " ".join(table.notes)


def test_one_gpu_and_one_model_explain_the_words_that_they_use() -> None:
    for name in ("h100-sxm", "l40", "l40s"):
        (table,) = shelf_tables("gpus", name)
        assert "held against a second source" in table.notes[-1]
    (listed,), (model,) = shelf_tables("models"), shelf_tables("models", "llama-3.1-8b")
    assert any(row["basis"] == "exact" for row in model.rows)
    assert any(note.startswith("Parameters are: exact, counted") for note in model.notes)
    for table in (listed, model):
        assert any(note.startswith("Recalled, ") for note in table.notes)
