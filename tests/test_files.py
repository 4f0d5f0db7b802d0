"""Files are written whole or not at all, through links, and straight into what is no file."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attnprof.errors import UsageError
from attnprof.figures.base import Axis, Figure, Panel
from attnprof.figures.drawing import write_figure
from attnprof.files import replacing, write_whole

posix = pytest.mark.skipif(sys.platform == "win32", reason="links and devices")


def test_content_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for content in ("one", b"\xff\x00"):
        write_whole(path, content)
        assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())
    assert [one.name for one in tmp_path.iterdir()] == ["a.txt"]


@posix
def test_a_link_stays_one_and_its_file_keeps_its_mode(tmp_path: Path) -> None:
    there, link = tmp_path / "there" / "a.txt", tmp_path / "a.txt"
    there.parent.mkdir()
    there.write_text("old")
    there.chmod(0o600)
    link.symlink_to(there)
    write_whole(link, "new")
    assert link.is_symlink() and there.read_text() == "new"
    assert there.stat().st_mode & 0o777 == 0o600


@posix
def test_what_is_no_regular_file_is_written_itself(tmp_path: Path) -> None:
    write_whole(Path("/dev/null"), "gone")
    assert not Path("/dev/null").is_file()
    (tmp_path / "full.md").symlink_to("/dev/full")
    with pytest.raises(UsageError, match="No space left"):
        write_whole(tmp_path / "full.md", "x" * 10)
    assert (tmp_path / "full.md").is_symlink()


def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as to:
        to.write_text("half")
        _ = 1 / 0
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["a.txt"]


def figure(path: Path) -> None:
    pytest.importorskip("matplotlib")
    axis = Axis("x", 1, 10, (1, 10), str)
    panel = Panel("p", "a note", lambda axes, theme: None)
    write_figure(Figure("f", "A title", "nothing", "nobody", axis, axis, (panel,)), path)


@posix
@pytest.mark.parametrize("write", [figure, lambda path: write_whole(path, "x" * 100_000)])
def test_a_full_disk_leaves_the_file_that_was_there(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    import resource

    path = tmp_path / "keep.svg"
    path.write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
    try:
        with pytest.raises(UsageError, match="cannot write"):
            write(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["keep.svg"]
