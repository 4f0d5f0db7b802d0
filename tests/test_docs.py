"""Every command in the docs is run, and prints what they say: ``--update-golden`` writes it anew.

README, accuracy and contributing, which are about a checkout, have tests of their own.
"""

import doctest
import html
import importlib.util
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from attnprof.findings import FLAG_WORDS
from attnprof.verdicts.comparison import VERDICTS
from tests.docs_pages import (
    ELISION,
    MEASURED,
    PICTURE,
    ROOT,
    Command,
    Printed,
    Shell,
    blocks,
    commands,
    figure_option,
    is_said,
    is_table_within,
    renewed,
    tables_of,
    texts_of,
)
from tests.typed_commands import COMMANDS, command_of

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*/*.md"))
EVERY_PAGE = sorted(DOCS.rglob("*.md"))
FREE = ("pip install ", "mkdir ", "python3 -m venv ")  # what a page may say that is not run


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
                assert tables_of(command.said) or command.said == ELISION
                assert _is_within(tables_of(command.said), tables_of(printed)), printed
                continue
            if is_renewed and command.said:
                body = body.replace(command.said, renewed(command.said, printed))
            else:
                assert is_said(command.said, printed), f"{command.typed} printed\n{printed}"
        if body != block["body"]:
            page.write_text(page.read_text("utf-8").replace(block["body"], body), "utf-8")
    for picture in PICTURE.finditer(text):
        _hold_picture(picture, page, shell, is_renewed)
    assert text.count("<picture>") == len(PICTURE.findall(text))


def _hold_picture(picture: re.Match[str], page: Path, shell: Shell, is_renewed: bool) -> None:
    """That both themes of a picture say what was drawn; of measured times, what its series are."""
    for theme in ("light", "dark"):
        kept = page.parent / picture[theme]
        drawn, is_measured = _drawn(kept.name, page, shell, theme)
        if is_renewed and not is_measured:
            kept.parent.mkdir(exist_ok=True)
            kept.write_bytes(drawn.read_bytes())
            alt = html.escape(texts_of(drawn.read_text("utf-8"))[0])
            renewed_text = page.read_text("utf-8").replace(picture["alt"], alt)
            page.write_text(renewed_text, "utf-8")
            continue
        said, now = (texts_of(path.read_text("utf-8")) for path in (kept, drawn))
        if is_measured:
            assert said[1] == now[1]  # its title
        else:
            assert said == now
        assert html.unescape(picture["alt"]) == said[0]


def _drawn(name: str, page: Path, shell: Shell, theme: str) -> tuple[Path, bool]:
    """The file that a command of a page drew, and whether it shows measured times."""
    stem = name.removesuffix(f"-{theme}.svg")
    for block in blocks(page.read_text(encoding="utf-8")):
        if block["kind"] != "console":
            continue
        for command in commands(block):
            if figure_option(command.typed) == f"{stem}.svg":
                if theme == "dark":
                    shell.run(replace(command, typed=f"{command.typed} --dark"))
                return shell.folder / f"{stem}.svg", False
            if command.typed.endswith(" --figures"):
                folder = shell.folder / shlex.split(command.typed)[2] / "figures"
                if (folder / name).is_file():
                    return folder / name, True
    raise AssertionError(f"no command of {page.name} draws {name}")


def _is_within(said: list[Printed], printed: list[Printed]) -> bool:
    """Whether each table that is said was printed, in that order."""
    left = iter(printed)
    return all(any(is_table_within(one, of) for of in left) for one in said)


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


def _typed_lines(page: Path) -> list[list[str]]:
    """The words of each command of attnprof in a page's blocks of shell commands."""
    found = []
    for block in blocks(page.read_text(encoding="utf-8")):
        if block["kind"] in ("sh", "bash", "shell"):
            for line in block["body"].replace("\\\n", " ").splitlines():
                for part in re.split(r" && ", line):
                    words = shlex.split(part, comments=True)
                    if words[:1] == ["attnprof"]:
                        found.append(words[1:])
    return found


TYPED = [
    pytest.param(words, id=shlex.join(words))
    for page in [ROOT / "README.md", *EVERY_PAGE]
    for words in _typed_lines(page)
]
QUICK = ("estimate", "show", "doctor")  # run where all that they name ships


@pytest.mark.parametrize("words", TYPED)
def test_a_command_that_is_shown_alone_can_be_typed(words: list[str], tmp_path: Path) -> None:
    if words[0].startswith("--"):
        assert words == ["--install-completion"]
        return
    name, command, others = command_of(words)
    with command.make_context(name, list(others)) as context:
        assert context.params
    is_plan = "--dry-run" in words and not any(word.endswith(".yaml") for word in words)
    names_own = {"cpu", "./config.json", "calibration.yaml"} & set(words)
    if is_plan or (name in QUICK and not names_own):
        shell = Shell(tmp_path)
        shell.run(Command(shlex.join(["attnprof", *words]), "", is_measured=False))
        assert shell.code in (0, 1)


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


def test_the_glossary_has_every_flag_and_verdict_in_the_words_of_the_program() -> None:
    text = (DOCS / "guide" / "glossary.md").read_text(encoding="utf-8")
    for flag, words in FLAG_WORDS.items():
        assert f"| `{flag}` | {words} |" in text
    assert set(VERDICTS) <= set(re.findall(r"`(\w+)`", text))


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

    for name in {*attnprof.__all__} - {"__version__"}:
        shown = f"attnprof.{name}" if name[0].islower() else name
        assert f"\n## {shown}\n" in made["reference/python.md"]
    assert "`holds_limits`" in made["reference/python.md"]
    assert "h100-sxm" in made["reference/names.md"]
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]* \| \S", made["reference/results.md"], re.M)
    assert tuple(rows) == module.RESULT_KEYS
