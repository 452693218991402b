"""Does every reader answer every input? `python -m tests.fuzz --seconds N [--reader NAME]`.

Valid inputs are damaged, with a seed, and read in a process that may be killed. An answer is an
error of ours in one line, or the values of the original. Not an answer: a traceback, a crash, more
than 10 s, more than 1 GiB of memory, other values than were written.

What is no answer is reduced and kept in `tests/corpus/READER/`, which `test_fuzz.py` reads again
whenever the tests run; --seed and the number that is printed make the same input once more.
"""

import argparse
import gzip
import mmap
import multiprocessing
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fuzz_answers
import fuzz_data
import fuzz_files
import fuzz_fits
import fuzz_front
import fuzz_text
from fuzzing import Reader, minimal

from neocpu.core.errors import NeocpuError

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
SECONDS = 10.0  # that a reader may take over one input
MEMORY = 1 << 30  # bytes that it may take
ANSWERS = ("refused", "same values", "another input")
_STATE = struct.Struct("<qd")  # input that is read, and since when


def readers() -> dict[str, Reader]:
    """All readers, by name."""
    front = fuzz_front.readers(fuzz_data.mutate_text, fuzz_data.mutate_schema)
    files = {**fuzz_files.readers(), **fuzz_fits.readers(), **fuzz_answers.readers()}
    return {**fuzz_data.readers(), **files, **fuzz_text.readers(), **front}


def answer(reader: Reader, path: Path, expected: Any, free: bool) -> str:
    """What a reader says of an input: one of ANSWERS, or what is wrong with its answer."""
    before = _peak()
    try:
        value = reader.read(path)
    except NeocpuError as error:
        if "\n" in str(error).strip():
            return f"an error of several lines: {str(error)!r}"
        return _memory(before) or "refused"
    except Exception as error:  # noqa: BLE001 (that is what is looked for)
        return f"a traceback: {type(error).__name__}: {str(error)[:200]}"
    if memory := _memory(before):
        return memory
    if value == expected:
        return "same values"
    return "another input" if free else "other values"


def _peak() -> int:
    """Most bytes of memory that this process has had."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _memory(before: int) -> str:
    taken = _peak() - before
    return f"takes {taken >> 20} MiB" if taken > MEMORY else ""


def damage(reader: Reader, name: str, original: Path, path: Path, seed: int, number: int) -> bool:
    """Write input `number` of a seed to `path`; whether it may be another valid one."""
    if original.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(original, path)
    else:
        shutil.copyfile(original, path)
    chance = np.random.default_rng([seed, zlib.crc32(name.encode()), number])
    return bool(reader.mutate(path, chance))


def work(name: str, seed: int, first: int, seconds: float, state: mmap.mmap, said: Any) -> None:
    """Read inputs first, first + 1, … for some seconds; runs in a process of its own."""
    os.setpgid(0, 0)
    with open(os.devnull, "w") as sink:  # libraries in other languages print their own tracebacks
        os.dup2(sink.fileno(), 2)
    reader = readers()[name]
    with tempfile.TemporaryDirectory(prefix="neocpu-fuzz-") as folder:
        (Path(folder) / "valid").mkdir()
        (Path(folder) / "damaged").mkdir()
        original = reader.make(Path(folder) / "valid")
        expected = reader.read(original)
        assert reader.read(original) == expected, f"{name}: two readings differ"
        path = Path(folder) / "damaged" / original.name
        for sibling in original.parent.iterdir():  # the base of a chain of files
            if sibling != original and sibling.is_file():
                shutil.copyfile(sibling, path.with_name(sibling.name))
        end = time.monotonic() + seconds
        number = first
        while time.monotonic() < end:
            free = damage(reader, name, original, path, seed, number)
            state[:] = _STATE.pack(number, time.monotonic())
            said.put((number, answer(reader, path, expected, free)))
            number += 1
        state[:] = _STATE.pack(-1, 0.0)


class Campaign:
    """The inputs of one reader, and what was said of them."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.failures: dict[int, str] = {}
        self._context = multiprocessing.get_context("fork")

    def run(self, seconds: float, first: int = 0) -> int:
        """Read inputs for some seconds; returns the number of the next."""
        end = time.monotonic() + seconds
        number = first
        while (left := end - time.monotonic()) > 0:
            number = self._attempt(left, number)
        return number

    def _attempt(self, seconds: float, first: int) -> int:
        """One process, until it is done, hangs or dies; returns the number of the next input."""
        state = mmap.mmap(-1, _STATE.size)
        state[:] = _STATE.pack(-1, 0.0)
        said = self._context.SimpleQueue()
        arguments = (self.name, self.seed, first, seconds, state, said)
        process = self._context.Process(target=work, args=arguments)
        process.start()
        number = first
        begun = time.monotonic()
        wrong = ""
        while process.is_alive() or not said.empty():
            while not said.empty():
                number, verdict = said.get()
                self._note(number, verdict)
            current, since = _STATE.unpack(state[:])
            now = time.monotonic()
            if current >= 0 and now - since > SECONDS:
                wrong = f"does not end in {SECONDS:.0f} s"
                number = current
            elif now - begun > seconds + 60:
                wrong = "does not begin" if current < 0 else ""
            if wrong:
                os.killpg(process.pid or 0, signal.SIGKILL)
                break
            time.sleep(0.002)
        process.join()
        if not wrong and process.exitcode:
            current, _ = _STATE.unpack(state[:])
            number = max(current, number)
            wrong = f"the process ends with status {process.exitcode}"
        if wrong:
            self._note(number, wrong)
        return number + 1

    def _note(self, number: int, verdict: str) -> None:
        self.counts[verdict if verdict in ANSWERS else "no answer"] += 1
        if verdict not in ANSWERS:
            self.failures[number] = verdict
            print(f"{self.name}, seed {self.seed}, input {number}: {verdict}", flush=True)

    def keep(self) -> None:
        """Reduce inputs without an answer, one of each kind, and put them into the corpus."""
        reader = readers()[self.name]
        kinds = {verdict[:60]: number for number, verdict in sorted(self.failures.items())}
        with tempfile.TemporaryDirectory(prefix="neocpu-fuzz-") as folder:
            original = reader.make(Path(folder))
            if original.is_dir():
                return
            expected = reader.read(original)
            good = original.read_bytes()
            path = original.with_name(f"damaged-{original.name}")
            for kind, number in kinds.items():
                free = damage(reader, self.name, original, path, self.seed, number)
                bad = path.read_bytes()

                def fails(data: bytes, free: bool = free, kind: str = kind) -> bool:
                    path.write_bytes(data)
                    return answer(reader, path, expected, free)[:60] == kind

                if kind.startswith(("a traceback", "other values", "an error")):
                    bad = minimal(good, bad, fails)
                target = CORPUS / self.name / f"{zlib.crc32(bad):08x}{original.suffix}.gz"
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(gzip.compress(bad, mtime=0))
                print(f"kept as {target.relative_to(HERE.parent)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz for so many seconds; 1 if something had no answer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="in all")
    parser.add_argument("--reader", choices=sorted(readers()), action="append", help="only these")
    parser.add_argument("--half", type=int, choices=(0, 1), help="every other reader only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--keep", action="store_true", help="put what has no answer in the corpus")
    options = parser.parse_args(arguments)
    names = options.reader or sorted(readers())
    if options.half is not None:
        names = names[options.half :: 2]
    failed = 0
    total = 0
    for name in names:
        campaign = Campaign(name, options.seed)
        campaign.run(options.seconds / len(names), options.first)
        counts = campaign.counts
        total += counts.total()
        failed += counts["no answer"]
        words = ", ".join(f"{counts[kind]:,} {kind}" for kind in (*ANSWERS, "no answer"))
        print(f"{name:16}{counts.total():>9,} inputs: {words}", flush=True)
        if options.keep and campaign.failures:
            campaign.keep()
    print(f"{total:,} inputs, seed {options.seed}: {failed} without an answer")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
