"""Measures attention on the hardware in front of it and plans LLM serving on hardware to come.

From Python it is a few functions, each of which is loaded when it is first asked for:
:func:`sweep`, :func:`read_run`, :func:`compare`, :func:`fit` and :func:`estimate`.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnprof.api import estimate, fit, read_run, sweep
    from attnprof.api_compare import compare
else:

    def __getattr__(name: str) -> Any:
        if name not in _FUNCTIONS:
            problem = f"module {__name__!r} has no attribute {name!r}"
            if not name.startswith("_"):  # those are asked for by Python's own machinery
                from attnprof.errors import nearest

                problem += f": {nearest(name, sorted(_FUNCTIONS))}"
            raise AttributeError(problem, name=name)
        from attnprof import api, api_compare

        return getattr(api_compare if name == "compare" else api, name)


__all__ = ["__version__", "compare", "estimate", "fit", "read_run", "sweep"]

__version__ = "0.1.0"

_FUNCTIONS = frozenset(__all__) - {"__version__"}


def __dir__() -> list[str]:
    return sorted((*globals(), *_FUNCTIONS))


class _Package(ModuleType):
    """This package, in which a module is not put in the place of the function of its name.

    Python does so when ``attnprof/estimate.py`` is imported, which ``attnprof.estimate`` does.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _FUNCTIONS and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
