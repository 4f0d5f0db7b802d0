"""Run by its path in another Python: finds the attnprof there, or brings this one, and starts it.

    PYTHON elsewhere.py tell            prints what there is, as a line of JSON
    PYTHON elsewhere.py work|serve ...  is a worker, or a server of them

Needs the standard library alone, and takes nothing but attnprof from where it lies itself: what
else is installed beside it was built for another Python.
"""

import importlib.util
import json
import os
import platform
import sys
from pathlib import Path


def provide_attnprof() -> None:
    """Make ``import attnprof`` find the one that is installed here, else this one."""
    if importlib.util.find_spec("attnprof") is not None:
        return
    package = Path(__file__).parent
    spec = importlib.util.spec_from_file_location(
        "attnprof", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["attnprof"] = module
    spec.loader.exec_module(module)


def told() -> dict[str, object]:
    """What this Python is, which attnprof it runs, and which protocol its workers speak."""
    found: dict[str, object] = {
        "executable": sys.executable,
        "python": platform.python_version(),
        "parent_pid": os.getppid(),
    }
    try:
        import attnprof
        from attnprof import worker
    except ImportError as error:
        return {**found, "missing": str(error)}
    assert attnprof.__file__ is not None
    return {
        **found,
        "attnprof": attnprof.__version__,
        "path": str(Path(attnprof.__file__).parent),
        "protocol": getattr(worker, "PROTOCOL", 0),
    }


def main(arguments: list[str]) -> None:
    """``tell``, or what :func:`attnprof.worker.main` takes."""
    provide_attnprof()
    if arguments == ["tell"]:
        print(json.dumps(told()))  # noqa: T201 - its one answer, to the process that asks
        return
    from attnprof import worker

    worker.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
