"""Looking for good settings: studies, spaces, workers, reports. Called, it is the function of the same name."""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """Once this package is imported, Python puts it at `drl.search`, where the function was; so it answers as that."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        from drl.search.search_call import search

        return search(*arguments, **settings)


sys.modules[__name__].__class__ = _Callable
