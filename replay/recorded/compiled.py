"""Compiled code kept on disk from run to run, and compiled anew when any file that it was made of has changed.

numba's own `cache=True` looks at one file only. What a function calls from other modules becomes part of its machine
code, so a change there would go on running as the old rule. Here the text of all those modules is part of the key.
"""

import hashlib
import inspect
from types import ModuleType

from numba import njit
from numba.core.caching import FunctionCache


class _Cache(FunctionCache):
    sources = ""

    def _index_key(self, sig, codegen):
        return (*super()._index_key(sig, codegen), self.sources)


def cached_njit(*modules: ModuleType):
    """Decorator: `njit` with a disk cache keyed by the text of `modules`, whose functions the decorated one calls.

    Where no cache folder can be written the function is compiled in every process.
    """
    digest = hashlib.sha256("\0".join(map(inspect.getsource, modules)).encode()).hexdigest()

    def decorate(function):
        compiled = njit(function)
        try:
            cache = _Cache(compiled.py_func)
        except RuntimeError:  # numba: no place for cached files
            return compiled
        cache.sources = digest
        compiled._cache = cache
        return compiled

    return decorate
