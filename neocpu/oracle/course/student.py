"""How is a student's file run? In this process, with a limit of time, and every error in it is told
as a line of hers with a sentence.
"""

import inspect
import linecache
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from difflib import get_close_matches
from pathlib import Path
from types import FrameType, ModuleType

import numpy as np

from neocpu.core.errors import DataError, OracleError
from neocpu.oracle.course.unit import Arguments, StudentFunction

SENTENCES: tuple[tuple[type[BaseException], str], ...] = (
    (IndexError, "an index lies outside of its array"),
    (KeyError, "a dictionary has no such key"),
    (RecursionError, "the function calls itself without an end"),
    (ZeroDivisionError, "something is divided by zero"),
    (UnboundLocalError, "a variable is read before it has a value"),
    (NameError, "nothing has this name: is it spelt as where it is assigned?"),
    (ImportError, "a module cannot be imported; NumPy and the standard library will do"),
    (MemoryError, "this asks for more memory than there is"),
    (OverflowError, "a number does not fit into its type"),
    (TypeError, "a value has a type that this operation does not take"),
    (ValueError, "a value or a shape does not fit"),
    (AssertionError, "an assertion does not hold"),
)
LAST_CALL = 4  # alarms after which a loop that catches every exception ends the process


class OutOfTimeError(BaseException):
    """The limit of time is over; no Exception, since loops of students catch those."""


class StudentFile:
    """A student's file, read and run once; its functions are called with `call`.

    Raises DataError for a file that is none, OracleError for one that does not run.
    """

    def __init__(self, path: Path, seconds: float, start: str) -> None:
        self.path = path
        self.seconds = seconds
        if path.suffix == ".ipynb":
            raise DataError(f"{path}: this is a notebook; save its cell as a file, as {start}")
        try:
            self.source = path.read_bytes()
        except FileNotFoundError as error:
            raise DataError(f"{path}: there is no such file; `{start}` writes one") from error
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        self.module = ModuleType(f"student_{path.stem}")
        # dataclasses and pickles look their module up
        sys.modules[self.module.__name__] = self.module
        linecache.checkcache(str(path))
        with self._explained("while Python read it"):
            code = compile(self.source, str(path), "exec")
            exec(code, self.module.__dict__)

    def function(self, name: str, parameters: tuple[str, ...]) -> StudentFunction:
        """The function of that name. Raises OracleError where it is absent or takes others."""
        names = vars(self.module)
        wanted = f"{name}({', '.join(parameters)})"
        if name not in names:
            near = get_close_matches(name, names, 1, 0.6)
            hint = f"; is {near[0]} meant?" if near else ""
            raise OracleError(f"{self.path} has no function {wanted}{hint}")
        function = names[name]
        if not callable(function):
            raise OracleError(
                f"{self.path}: {name} is a {type(function).__name__}, not a function {wanted}"
            )
        try:
            signature = inspect.signature(function)
            signature.bind(*parameters)
        except ValueError:
            pass  # of NumPy's own functions nobody knows the signature
        except TypeError as error:
            raise OracleError(
                f"{self.path}: {name}{signature} is called as {wanted}: {error}"
            ) from error
        return function

    def call(self, function: StudentFunction, arguments: Arguments, doing: str) -> object:
        """What the function returns for copies of the arguments.

        Raises OracleError for what ends in it.
        """
        copies = [deepcopy(value) for value in arguments.values()]
        with self._explained(f"while it worked on: {doing}"), np.errstate(all="ignore"):
            return function(*copies)

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Tell what ends in the file as a line of it."""
        folder = str(self.path.resolve().parent)
        sys.path.insert(0, folder)
        try:
            with self._limited():
                yield
        except SyntaxError as error:
            text = (error.text or "").strip()
            words = f"this is not Python: {error.msg}"
            raise OracleError(_line(self.path, error.lineno or 1, text, words)) from error
        except OutOfTimeError as error:
            words = f"it was still here after {self.seconds:g} seconds, {doing}: does it end?"
            raise OracleError(self._at(error, words)) from error
        except SystemExit as error:
            raise OracleError(self._at(error, "this ends the program, not the function")) from error
        except NotImplementedError as error:
            raise OracleError(self._at(error, str(error))) from error
        except Exception as error:
            sentence = next((s for kind, s in SENTENCES if isinstance(error, kind)), "")
            message = str(error).splitlines()[0] if str(error) else ""
            said = f" ({type(error).__name__}: {message})" if message else ""
            words = f"{sentence or 'Python stopped here'}{said}, {doing}"
            raise OracleError(self._at(error, words)) from error
        finally:
            sys.path.remove(folder)

    def _at(self, error: BaseException, words: str) -> str:
        """Words about an error, at the innermost line of the file that it passed through."""
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(self.path)]
        number = (lines and lines[-1]) or 1
        return _line(self.path, number, linecache.getline(str(self.path), number), words)

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Raise OutOfTimeError after the limit, where signals can be had: in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        alarms = 0

        def stop(number: int, frame: FrameType | None) -> None:
            nonlocal alarms
            alarms += 1
            if alarms >= LAST_CALL:
                # a loop around `except:` catches this exception each time
                words = "this loop catches every exception, its end too: name the one it is for"
                line = frame.f_lineno if frame is not None else 1
                text = linecache.getline(str(self.path), line)
                print(_line(self.path, line, text, words), file=sys.stderr, flush=True)
                os._exit(1)
            raise OutOfTimeError

        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, self.seconds, max(self.seconds / 4, 0.25))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _line(path: Path, number: int, text: str, words: str) -> str:
    """A line of a file with words about it."""
    shown = f"\n    {text.strip()}" if text.strip() else ""
    return f"{path}, line {number}:{shown}\n  {words}"
