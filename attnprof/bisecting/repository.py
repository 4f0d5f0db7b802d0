"""A git repository -> commits by name, checkouts of their own, and what is left of a bisection."""

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attnprof.errors import CannotMeasureError, UsageError, nearest, nearest_path

# Set where git itself has started us, and then about another checkout.
_OF_ANOTHER = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")
_SHORT = 10


@dataclass(frozen=True)
class Commit:
    """One commit, as people tell it from others."""

    id: str
    subject: str
    author: str
    date: str

    @property
    def short(self) -> str:
        return self.id[:_SHORT]


def git_environment() -> dict[str, str]:
    """The environment for git and all below it. No compiled Python is written: checkouts of one
    folder within a second would be taken for each other."""
    kept = {key: value for key, value in os.environ.items() if key not in _OF_ANOTHER}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1"}


def git(folder: Path, *arguments: str) -> str:
    """What git prints.

    Raises:
        CannotMeasureError: There is no git.
        UsageError: It fails, with what it says of that.
    """
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env=git_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise CannotMeasureError(f"git does not start: {error.strerror}", "install git") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UsageError(f"git {arguments[0]} in {folder} failed: {said[:300]}")
    return done.stdout.strip()


def top_folder(folder: Path) -> Path:
    """The root of the checkout that ``folder`` is in.

    Raises:
        UsageError: It is in none.
    """
    try:
        return Path(git(folder, "rev-parse", "--show-toplevel"))
    except UsageError:
        hint = nearest_path(folder, "*/") or "name one with --repository"
        raise UsageError(f"{folder} is in no git repository", hint) from None


def find_commit(repository: Path, name: str) -> Commit:
    """The commit of a branch, a tag or an id.

    Raises:
        UsageError: There is none of that name.
    """
    try:
        found = git(repository, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
    except UsageError:
        raise UsageError(f"{repository} has no commit {name!r}", _near(repository, name)) from None
    return describe(repository, found.splitlines()[-1])


def _near(repository: Path, name: str) -> str:
    """The branch or tag that was probably meant, with what stands behind it, such as ``~3``."""
    stem = re.split("[~^]", name, maxsplit=1)[0]
    listed = git(repository, "for-each-ref", "--format=%(refname:short)", "--sort=-creatordate")
    hint = nearest(stem, ["HEAD", *listed.split()])
    if not hint.startswith("did you mean"):
        return "name a branch, a tag or a commit's id"
    return hint.replace("'?", f"{name.removeprefix(stem)}'?")


def describe(repository: Path, commit_id: str) -> Commit:
    """What people want to know of a commit."""
    told = git(repository, "show", "--no-patch", "--format=%s%x00%an%x00%aI", commit_id)
    subject, author, date = told.split("\0")
    return Commit(commit_id, subject, author, date)


def find_ends(folder: Path, good: str, bad: str) -> tuple[Path, Commit, Commit]:
    """The root of the checkout that ``folder`` is in, and the two ends to search between.

    Raises:
        UsageError: No repository, no such commit, or ends that are no two ends.
    """
    repository = top_folder(folder)
    first, last = find_commit(repository, good), find_commit(repository, bad)
    if first.id == last.id:
        raise UsageError(f"{good} and {bad} are one commit", "name two ends")
    if is_ancestor(repository, last, first):
        raise UsageError(f"{bad} came before {good}", "name the good end, then the bad one")
    return repository, first, last


def is_ancestor(repository: Path, earlier: Commit, later: Commit) -> bool:
    return git(repository, "merge-base", earlier.id, later.id) == earlier.id


def num_between(repository: Path, good: Commit, bad: Commit) -> int:
    """Commits that may have done it."""
    return int(git(repository, "rev-list", "--count", f"{good.id}..{bad.id}"))


def left_of_bisection(checkout: Path) -> list[Commit]:
    """The commits of which one is the first bad one, as far as the bisection there has come."""
    listed = git(
        checkout, "rev-list", "refs/bisect/bad", "--not", "--glob=refs/bisect/good-*"
    ).split()
    return [describe(checkout, commit_id) for commit_id in listed]


@contextlib.contextmanager
def checkouts(repository: Path, good: Commit, bad: Commit) -> Iterator[tuple[Path, Path]]:
    """A checkout of each, in folders of their own: the user's own is left as it is."""
    with tempfile.TemporaryDirectory(prefix="attnprof-bisect-", ignore_cleanup_errors=True) as made:
        folders = Path(made).resolve() / "good", Path(made).resolve() / "tested"
        try:
            for folder, commit in zip(folders, (good, bad), strict=True):
                git(repository, "worktree", "add", "--detach", "--quiet", str(folder), commit.id)
            yield folders
        finally:
            for folder in folders:
                with contextlib.suppress(UsageError):
                    git(folder, "bisect", "reset")
                with contextlib.suppress(UsageError):
                    git(repository, "worktree", "remove", "--force", "--force", str(folder))
