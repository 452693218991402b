"""Is what kernels inline linked as it was lowered, and is nothing else in the process changed?"""

from threading import Thread

import numba
import numpy as np
import pytest
from numba import prange
from numba.core import event
from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target

from neocpu.kernels.compile.cache import activity
from neocpu.kernels.compile.jit import inlined, kernel, parallel_kernel
from neocpu.kernels.compile.linking import KernelLibrary


@inlined
def doubled(x):
    if x < 0:
        raise ValueError("negative")
    return 2 * x


@kernel
def sum_doubled(x):
    total = 0.0
    for value in x:
        total += doubled(value)
    return total


@parallel_kernel
def double_all(x, out):
    for i in prange(x.size):
        out[i] = doubled(x[i])


@kernel
def sum_of_sums(x):
    return sum_doubled(x) + sum_doubled(x[1:])


@parallel_kernel
def double_rows(x, out):
    for i in prange(x.shape[0]):
        double_all(x[i], out[i])


@inlined
def printed(x):
    print("from within", x)
    return x


@kernel
def print_one(x):
    return printed(x)


loaded = kernel(sum_doubled.py_func)


@kernel
def sum_loaded(x):
    return loaded(x) + doubled(x[0])


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch, tmp_path) -> list[str]:
    """Names of the libraries that machine code is made of, in an empty cache."""
    names = []
    emit = JITCodeLibrary._finalize_final_module

    def noted(library):
        names.append(library.name)
        emit(library)

    monkeypatch.setenv("NEOCPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(JITCodeLibrary, "_finalize_final_module", noted)
    return names


def test_a_kernel_is_emitted_once_and_whole(emitted: list[str]) -> None:
    x = np.arange(5.0, dtype=np.float32)
    out = np.empty_like(x)
    double_all(x, out)
    assert out.tolist() == [0, 2, 4, 6, 8]
    of_kernels = [name.partition("[")[0] for name in emitted if name != "nrt"]  # Numba's runtime
    assert of_kernels == ["double_all"]


def test_what_a_parallel_region_inlines_is_compiled_once(emitted: list[str]) -> None:
    x = np.arange(5, dtype=np.uint8)
    with event.install_recorder("numba:compile") as recorder:
        double_all(x, x)
    begun = [record.data["dispatcher"] for _, record in recorder.buffer if record.is_start]
    assert [kernel.py_func for kernel in begun].count(doubled) == 1


def test_a_kernel_that_a_kernel_calls_is_one_for_python_too() -> None:
    x = np.arange(4.0)
    assert sum_of_sums(x) == 24
    assert sum_doubled(x) == 12


def test_a_parallel_kernel_may_call_another() -> None:
    x = np.arange(6.0).reshape(2, 3)
    out = np.empty_like(x)
    double_rows(x, out)
    assert out.tolist() == (2 * x).tolist()


def test_what_a_kernel_calls_may_come_from_the_cache(emitted: list[str]) -> None:
    """It is loaded while the kernel is compiled."""
    x = np.arange(4, dtype=np.int16)
    kernel(sum_doubled.py_func)(x)
    before = activity.loaded
    assert sum_loaded(x + 1) == 22
    assert activity.loaded == before + 1
    with pytest.raises(ValueError, match="negative"):
        loaded(-x)


def test_what_is_inlined_may_print(capfd: pytest.CaptureFixture[str], emitted: list[str]) -> None:
    """Constants are in its environment, compiled or loaded."""
    for each in (print_one, kernel(print_one.py_func)):
        assert each(7) == 7
    assert capfd.readouterr().out == 2 * "from within 7\n"


def test_threads_compile_kernels_and_others_functions_at_once() -> None:
    theirs = numba.njit(lambda x: doubled(x) + 1)
    answers = {}

    def work(dtype: str) -> None:
        answers[dtype] = (sum_doubled(np.arange(4).astype(dtype)), theirs(np.dtype(dtype).type(3)))

    threads = [Thread(target=work, args=(dtype,)) for dtype in ("i1", "u2", "u4")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == dict.fromkeys(("i1", "u2", "u4"), (12, 7))


def test_what_is_inlined_may_raise() -> None:
    with pytest.raises(ValueError, match="negative"):
        sum_doubled(np.array([1.0, -1.0]))


def test_other_users_of_numba_keep_its_libraries() -> None:
    codegen = cpu_target.target_context.codegen()
    sum_doubled(np.zeros(1, np.int32))
    assert not isinstance(codegen.create_library("theirs"), KernelLibrary)

    @numba.njit
    def theirs(x):
        return doubled(x) + 1

    assert theirs(3) == 7


def test_a_kernel_that_cannot_be_compiled_leaves_nothing_behind() -> None:
    codegen = cpu_target.target_context.codegen()
    with pytest.raises(numba.core.errors.TypingError):
        sum_doubled("no array of numbers")
    assert not {"_library_class", "set_env"} & {*vars(codegen)}
