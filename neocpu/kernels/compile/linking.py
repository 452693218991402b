"""How often is a kernel's code optimised? Once, whole.

Numba makes a library of each function that a kernel inlines: it optimises the library, emits
machine code for it, and links it into the libraries of those that inline it, which are optimised
and emitted in turn. So the loop of a fused update went through LLVM six times: for itself, in the
two functions of the parallel region, in the two wrappers of that, and in the kernel. Here only
what Python may call is optimised and emitted; all else is linked as it was lowered. LLVM sees the
same calls and inlines them all, so kernels are as fast, and a kernel takes half as long to
compile.

A `called_kernel` (`compile/jit.py`) is not linked at all: its callers name it, and find its machine
code in the process. One that comes from the cache has it loaded first, as Numba has a kernel load
its threads.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from llvmlite.binding import add_symbol
from numba.core.codegen import JITCodeLibrary
from numba.core.environment import lookup_environment
from numba.core.registry import cpu_target

WRAPPER = "_ZN7cpython"  # how names of functions begin that Python may call
ENVIRONMENT = "_ZN08NumbaEnv"  # and those of variables with what a function needs of Python
CALLED = "_called"  # the mark of a function that is not copied into its callers
REGION = "__numba_parfor_gufunc"  # a parallel region, which has such a wrapper for nothing


class KernelLibrary(JITCodeLibrary):
    """The library of a kernel, or of a function that kernels inline."""

    @property
    def _callable(self) -> bool:
        """Whether Python may call its function."""
        if self._shared_module is not None:  # of the cache: emitted already, its module is empty
            return True
        return REGION not in self.name and any(
            function.name.startswith(WRAPPER)
            and REGION not in function.name
            and not function.is_declaration
            for function in self._final_module.functions
        )

    def add_linking_library(self, library: Any) -> None:
        if hasattr(library, "provide"):
            self._reload_init.add(library.provide)
        else:
            super().add_linking_library(library)

    def _optimize_final_module(self) -> None:
        if self._callable:
            super()._optimize_final_module()

    def _finalize_final_module(self) -> None:
        if not self._callable:
            self._finalize_dynamic_globals()
            self._finalized = True
            return
        super()._finalize_final_module()
        codegen: Any = self._codegen
        # Those of the functions that were inlined have an address only now.
        for variable in self._final_module.global_variables:
            if variable.name.startswith(ENVIRONMENT):
                environment = lookup_environment(variable.name)
                if environment is not None:
                    codegen.set_env(variable.name, environment)


def offer(kernel: Any, signature: Any, result: Any) -> None:
    """Let kernels call what was compiled, or loaded, of a kernel that is marked so."""
    function = kernel.py_func
    if hasattr(function, CALLED):
        name = result.fndesc.llvm_func_name
        # a dynamic attribute, since Numba makes the library
        result.library.provide = partial(
            _provide, function.__module__, function.__name__, signature, name
        )


def _provide(module: str, kernel: str, signature: Any, name: str) -> None:
    """Have machine code of a kernel in this process, by the name that a caller has for it."""
    dispatcher = getattr(import_module(module), kernel)
    dispatcher.compile(signature)
    result = dispatcher.overloads[signature]
    # compiled by another process than the caller was, it has another name
    add_symbol(name, result.library.get_pointer_to_function(result.fndesc.llvm_func_name))


def optimised_once(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """A dispatcher's function that compiles, such that it makes a `KernelLibrary` of everything.

    Other users of Numba in this process keep Numba's own libraries. Numba compiles under a lock, so
    one of its threads at a time.
    """

    def wrapped(*args: Any) -> Any:
        codegen: Any = cpu_target.target_context.codegen()
        if "_library_class" in vars(codegen):  # a kernel that a kernel calls
            return compiled(*args)
        set_env = codegen.set_env

        def set_if_emitted(name: str, environment: Any) -> None:
            if codegen._engine.is_symbol_defined(name):
                set_env(name, environment)

        codegen._library_class = KernelLibrary
        codegen.set_env = set_if_emitted
        try:
            return compiled(*args)
        finally:
            del codegen._library_class
            del codegen.set_env

    return wrapped
