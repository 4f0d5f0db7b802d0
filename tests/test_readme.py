"""Commands print what README and docs say they do: ``pytest --update-golden`` writes it anew.

A block ``console`` holds commands after ``$`` and what they print at 100 columns; a last line ``…``
stands for the rest, of which it is renewed with as many lines as it had.
"""

import html
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs_pages import PICTURE, ROOT, texts_of

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```console\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)^```$", re.M | re.S)

COMMANDS = [
    pytest.param(page, found["command"], id=f"{page.name}: {found['command']}")
    for page in PAGES
    for found in BLOCK.finditer(page.read_text(encoding="utf-8"))
]


def printed(command: str, folder: Path) -> str:
    words = shlex.split(command)
    assert words[0] == "attnprof"
    start = ROOT
    if words[1] == "report":  # writes beside the records: into a copy, so that the kept run stays
        start = folder / "checkout"
        shutil.copytree(ROOT / "reports", start / "reports")
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=start,
        capture_output=True,
        text=True,
        check=False,
        env={
            "PATH": "",
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "PYTHONPATH": str(ROOT),
            "ATTNPROF_PROFILES": str(folder),
            "HOME": str(folder),
        },
    )
    assert done.returncode in (0, 1), done.stderr  # 1: the answer is no, as of a comparison
    return done.stdout


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_prints_what_the_page_says(
    page: Path, command: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if "../shared/" in command and not (ROOT / "../shared").is_dir():
        pytest.skip("the files of truth lie beside the checkout")
    output = printed(command, tmp_path)
    text = page.read_text(encoding="utf-8")
    if request.config.getoption("--update-golden"):
        said = next(f["output"] for f in BLOCK.finditer(text) if f["command"] == command)
        shown = output
        if said.endswith("…\n"):
            shown = "".join(output.splitlines(keepends=True)[: said.count("\n") - 1]) + "…\n"
        text = BLOCK.sub(
            lambda found: (
                f"```console\n$ {command}\n{shown}```" if found["command"] == command else found[0]
            ),
            text,
        )
        page.write_text(text, encoding="utf-8")
    said = next(f["output"] for f in BLOCK.finditer(text) if f["command"] == command)
    beginning = said.removesuffix("…\n")
    assert beginning
    assert output.startswith(beginning)
    assert said.endswith("…\n") or output == said


def test_pictures_say_what_they_show_to_who_does_not_see_them(
    request: pytest.FixtureRequest,
) -> None:
    page = ROOT / "README.md"
    text = page.read_text(encoding="utf-8")
    pictures = list(PICTURE.finditer(text))
    assert pictures
    for picture in pictures:
        light, dark = (
            texts_of((ROOT / picture[theme]).read_text("utf-8"))[0] for theme in ("light", "dark")
        )
        assert light == dark
        if request.config.getoption("--update-golden"):
            text = text.replace(picture["alt"], html.escape(light))
            page.write_text(text, encoding="utf-8")
        else:
            assert html.unescape(picture["alt"]) == light


def test_the_pages_show_what_commands_print() -> None:
    assert len(COMMANDS) >= 4
