"""Every command in the docs is run, and prints what they say: ``--update-golden`` writes it anew.

README, accuracy and contributing, which are about a checkout, have tests of their own.
"""

import doctest
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from tests.docs_pages import (
    ELISION,
    MEASURED,
    ROOT,
    Shell,
    TableNames,
    blocks,
    commands,
    is_said,
    names,
    renewed,
)
from tests.typed_commands import COMMANDS, command_of

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*/*.md"))
EVERY_PAGE = sorted(DOCS.rglob("*.md"))
FREE = ("pip install ", "mkdir ")  # what a page may tell to type that is not run


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_print_what_it_says(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    text = page.read_text(encoding="utf-8")
    is_renewed = request.config.getoption("--update-golden")
    shell = Shell(tmp_path)
    for block in blocks(text):
        if block["title"]:
            shell.write(block["title"], block["body"])
        if block["kind"] != "console":
            continue
        body = block["body"]
        for command in commands(block):
            printed = shell.run(command)
            if command.is_measured:
                assert names(command.said) or command.said == ELISION
                assert _is_within(names(command.said), names(printed))
                continue
            if is_renewed:
                body = body.replace(command.said, renewed(command.said, printed))
            else:
                assert is_said(command.said, printed), f"{command.typed} printed\n{printed}"
        if body != block["body"]:
            page.write_text(page.read_text("utf-8").replace(block["body"], body), "utf-8")


def _is_within(said: list[TableNames], printed: list[TableNames]) -> bool:
    """Whether each table that is said was printed, with those rows at least, in that order."""
    left = iter(printed)
    return all(any(of[:2] == one[:2] and one[2] <= of[2] for of in left) for one in said)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_of_a_page_gives_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page.read_text(encoding="utf-8")
    source = "".join(block["body"] + "\n" for block in blocks(text) if block["kind"] == "pycon")
    if not source:
        return
    if "pandas" in source:
        pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTNPROF_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    examples = doctest.DocTestParser().get_doctest(source, {}, page.name, str(page), 0)
    failed, tried = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples)
    assert tried
    assert not failed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_nothing_on_a_page_is_typed_that_is_not_run(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        if block["kind"] in ("sh", "bash", "shell"):
            for line in block["body"].splitlines():
                assert line.startswith(FREE), f"{line}: write it in a block console"


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.stem)
def test_a_command_within_a_sentence_can_be_typed(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for typed in re.findall(r"`attnprof ([^`]+)`", prose):
        if typed.startswith("--"):
            continue
        _, command, words = command_of(shlex.split(typed))
        known = {option for parameter in command.params for option in parameter.opts}
        known |= {option for one in command.params for option in one.secondary_opts}
        assert {word for word in words if word.startswith("--")} <= known, typed


def test_every_persona_has_a_page() -> None:
    for name in ("will-it-fit", "how-many-users", "slower", "long-context", "retrieve"):
        text = (DOCS / "questions" / f"{name}.md").read_text(encoding="utf-8")
        assert "```console\n$ attnprof " in text


def test_the_tutorial_goes_from_a_sweep_to_a_decision() -> None:
    text = (DOCS / "guide" / "tutorial.md").read_text(encoding="utf-8")
    typed = [
        c.typed for block in blocks(text) if block["kind"] == "console" for c in commands(block)
    ]
    assert typed[0].startswith("attnprof sweep")
    assert any(one.startswith("attnprof estimate") for one in typed)
    assert MEASURED in text


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as CI builds it, warnings being errors."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    import subprocess
    import sys

    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={
            "PATH": "",
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
            "http_proxy": "http://127.0.0.1:9",  # whoever asks for the network finds none
            "https_proxy": "http://127.0.0.1:9",
            "NO_MKDOCS_2_WARNING": "1",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_is_built_without_a_warning_and_has_every_page(site: Path) -> None:
    for page in EVERY_PAGE:
        assert site.joinpath(page.relative_to(DOCS)).with_suffix(".html").is_file()
    for name in ("commands", "python", "names", "results"):
        assert (site / "reference" / f"{name}.html").is_file()


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r'<(?:script|img|iframe)[^>]*\ssrc="(https?:)?//|<link[^>]*href="https?://')
    styled = re.compile(r"url\(['\"]?(?:https?:)?//")
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not loaded.search(text), page
        assert "fonts.googleapis" not in text
    for sheet in site.rglob("*.css"):
        assert not styled.search(sheet.read_text(encoding="utf-8")), sheet


def test_the_reference_has_every_command_option_function_and_column() -> None:
    spec = importlib.util.spec_from_file_location("docs_pages", ROOT / "tools" / "docs_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.pages()
    for name, command in COMMANDS.items():
        assert f"\n## attnprof {name}\n" in made["reference/commands.md"]
        for parameter in command.params:
            for option in parameter.opts:
                if option.startswith("--") and option != "--help":
                    assert option in made["reference/commands.md"]
    import attnprof

    for name in attnprof.__all__[1:]:
        assert f"\n## attnprof.{name}\n" in made["reference/python.md"]
    assert "`holds_limits`" in made["reference/python.md"]
    assert "h100-sxm" in made["reference/names.md"]
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]* \| \S", made["reference/results.md"], re.M)
    assert tuple(rows) == module.RESULT_KEYS
