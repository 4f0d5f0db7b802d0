"""Measures attention on the hardware in front of it and plans LLM serving on hardware to come.

From Python it is a few functions, each of which is loaded when it is first asked for:
:func:`sweep`, :func:`read_run`, :func:`compare`, :func:`fit`, :func:`estimate` and
:func:`estimate_grid`, and the types of what they give.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnprof.api import (
        EstimateResult,
        FitResult,
        SweepResult,
        estimate,
        fit,
        read_run,
        sweep,
    )  # fmt: skip
    from attnprof.api_compare import ComparisonResult, compare
    from attnprof.api_grid import EstimateGrid, estimate_grid
else:

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            problem = f"module {__name__!r} has no attribute {name!r}"
            if not name.startswith("_"):  # those are asked for by Python's own machinery
                from attnprof.errors import nearest

                problem += f": {nearest(name, sorted(_LAZY))}"
            raise AttributeError(problem, name=name)
        from importlib import import_module

        return getattr(import_module(f"attnprof.{_MODULES.get(name, 'api')}"), name)


__all__ = [
    "ComparisonResult", "EstimateGrid", "EstimateResult", "FitResult", "SweepResult",
    "__version__", "compare", "estimate", "estimate_grid", "fit", "read_run", "sweep",
]  # fmt: skip

__version__ = "0.1.0"

_LAZY = frozenset(__all__) - {"__version__"}
_MODULES = {
    "ComparisonResult": "api_compare", "compare": "api_compare",
    "EstimateGrid": "api_grid", "estimate_grid": "api_grid",
}  # fmt: skip


def __dir__() -> list[str]:
    return sorted((*globals(), *_LAZY))


class _Package(ModuleType):
    """This package, in which a module is not put in the place of the function of its name.

    Python does so when ``attnprof/estimate.py`` is imported, which ``attnprof.estimate`` does.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _LAZY and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
