from pathlib import Path

import pytest

from attnprof.errors import UsageError
from attnprof.profiles import MAX_PROFILE_BYTES, read_yaml

TENFOLD = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
)
MERGED = "\n".join(
    ["a0: &a0 {k0: 1, k1: 1, k2: 1}"]
    + [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 12)]
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(TENFOLD, "use fewer aliases", id="aliases of aliases: ten billion values"),
        pytest.param(MERGED, "use fewer aliases", id="merged mappings of merged mappings"),
        pytest.param("a: &a [*a]", "alias of itself", id="a list in itself"),
        pytest.param("a: 1\nb: 2\na: 3\n", "line 3: the key 'a' is there before", id="a key twice"),
        pytest.param("a:\n\tb: 1\n", "line 2: ", id="a tab"),
        pytest.param("[" * 100_000, "is not YAML", id="deep nesting"),
        pytest.param("a: !!python/name:os.system x", "is not YAML: line 1", id="a tag of Python"),
        pytest.param("#" * (MAX_PROFILE_BYTES + 1), "larger than a profile", id="too long"),
        pytest.param("- a\n", "no mapping", id="a list"),
        pytest.param("", "no mapping", id="nothing"),
    ],
)
def test_yaml_that_is_no_profile_is_refused_at_once(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=words) as error:
        read_yaml(path)
    assert len(str(error.value)) < 1000


def test_an_alias_is_what_it_stands_for(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: &a {n: 1}\nb: *a\nc: {<<: *a, m: 2}\n")
    assert read_yaml(path) == {"a": {"n": 1}, "b": {"n": 1}, "c": {"n": 1, "m": 2}}


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*: Is a directory"):
        read_yaml(tmp_path)
    (tmp_path / "x.yaml").write_bytes(b"name: \xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_yaml(tmp_path / "x.yaml")
