"""What is asked? Suites of cases in one self-describing HDF5 file, answerable without neocpu.

    /                           attributes: format, version, seed, neocpu, sha256, how_to_answer
    /cases/NAME                 attributes: op, about, sha256
    /cases/NAME/inputs/…        arrays; attributes: about (shape and dtype), axes (their names)
    /cases/NAME/options         one attribute per option, complete
    /cases/NAME/outputs/OUT/…   canonical, reference, bound (and lower, upper, probability,
                                typical); attributes: about, axes, format (of elements), exact
    /switches, /presets         what the oracle can tell apart, in words

The hash covers names, options and numbers, not HDF5's bytes nor the prose; all NaNs hash alike. The
file ends in a seal over all of its bytes (`tables/hdf5/seal.py`).
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from neocpu import __version__
from neocpu.core import targets
from neocpu.core.errors import OracleError
from neocpu.oracle.adapters import CODES, Array, coded, codes_of, format_of
from neocpu.oracle.answers import SUITE_FORMAT as FORMAT
from neocpu.oracle.operator import Case, Field, Truth
from neocpu.oracle.verdicts.typical import with_typical
from neocpu.tables.hdf5.door import Array as StoredArray
from neocpu.tables.hdf5.door import File, Kind
from neocpu.tables.hdf5.draft import Draft
from neocpu.tables.hdf5.walk import one_line

VERSION = 2  # 2: outputs may have a statistical bound, `typical`
READABLE = (1, 2)
KIND = Kind(
    format=FORMAT,
    version=VERSION,
    error=OracleError,
    missing="{path}: no such file; make a suite with `neocpu oracle export {path}`",
    damaged="{path}: a damaged or truncated suite: {why}; export it again",
    no_hdf5="{path}: not an HDF5 file; make a suite with `neocpu oracle export`",
    foreign="{path}: an HDF5 file, but not an oracle suite; is it the file of answers?",
    newer="{path}: suite of version {version}, this neocpu reads {newest}: export again",
)
COMPRESSED = 512  # bytes of an array from which on it is compressed
BOUND_BITS = 11  # of a bound that is stored
MOST_BYTES = 256 << 20  # of an array, decompressed
# what the content of a case may raise
PROBLEMS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
CASES_PER_OPERATOR = 2  # in the golden suite
GOLDEN_BYTES = 2048  # of the inputs of a case in it, at most
HOW_TO_ANSWER = (
    "Answer case by case: an array named CASE/OUT for each output, shaped as "
    "outputs/OUT/canonical, in HDF5, npz or safetensors; leave out what you do not have. "
    "Then: neocpu oracle check SUITE.h5 ANSWERS. Text is of fixed length: h5py gives it as bytes"
)


@dataclass(frozen=True)
class Expected:
    """One output of a question."""

    truth: Truth
    canonical: Array | None  # the bits that neocpu computes, if it does
    field: Field


@dataclass(frozen=True)
class Question:
    """A case and what its outputs must be; `sha256` of its names, options and numbers."""

    case: Case
    outputs: dict[str, Expected]

    @property
    def sha256(self) -> str:
        """Hash of the content, whatever the file's bytes."""
        digest = hashlib.sha256(
            _line([self.case.name, self.case.op, dict(sorted(self.case.options.items()))])
        )
        for name, array in sorted(self.case.inputs.items()):
            _hash(digest, f"inputs/{name}", array)
        for name, expected in sorted(self.outputs.items()):
            digest.update(_line([name, expected.truth.format, expected.truth.exact]))
            for part, array in parts_of(expected).items():
                _hash(digest, f"outputs/{name}/{part}", array)
        return digest.hexdigest()


def _line(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def parts_of(expected: Expected) -> dict[str, Array]:
    """The arrays of an expected output by name, those that it has."""
    parts = {"canonical": expected.canonical, **expected.truth.arrays()}
    return {name: np.asarray(array) for name, array in parts.items() if array is not None}


def _hash(digest: "hashlib._Hash", name: str, array: Array) -> None:
    codes = np.ascontiguousarray(codes_of(array))
    # The hash is the same on machines of either byte order.
    codes = codes.astype(codes.dtype.newbyteorder("<"))
    if codes.dtype.kind == "f":
        # NaN has many bit patterns, which machines choose freely.
        codes = np.where(np.isnan(codes), np.array(np.nan, codes.dtype), codes).astype(codes.dtype)
    digest.update(_line([name, codes.dtype.str, list(np.shape(array)), format_of(array)]))
    digest.update(codes.tobytes())


def suite_digest(questions: Iterable[tuple[str, str]], seed: int, version: int = VERSION) -> str:
    """SHA-256 of a suite of a version of the format from (name, hash) of its questions."""
    return hashlib.sha256(_line([FORMAT, version, seed, sorted(questions)])).hexdigest()


def ask(case: Case, backend: str = "reference") -> Question:
    """The question of a case: canonical bits by a backend, and the exact truth.

    The twins have the kernels' bits, and need no compiler: a suite takes seconds with them.
    """
    from neocpu.oracle.ops import OPERATORS

    op = OPERATORS[case.op]
    options = op.complete(case.options)
    with np.errstate(all="ignore"):
        truths = with_typical(op, case.inputs, options, op.truth(case.inputs, options))
        bits = op.run(case.inputs, options, backend)
    fields = {name: op.outputs.get(name.rsplit("/", 1)[-1], Field("")) for name in truths}
    truths = {name: _with_short_bounds(truth) for name, truth in truths.items()}
    full = Case(case.name, case.op, case.inputs, options, case.about)
    return Question(
        full,
        {name: Expected(truth, bits.get(name), fields[name]) for name, truth in truths.items()},
    )


def _with_short_bounds(truth: Truth) -> Truth:
    """The truth with bounds rounded upward to numbers of few bits, which take a third of the room.

    A kernel that is right stays right; the bounds grow by less than a thousandth.
    """
    if truth.exact:
        return truth
    typical = None if truth.typical is None else _rounded_up(truth.typical)
    return replace(truth, bound=_rounded_up(truth.bound), typical=typical)


def _rounded_up(bound: Array) -> Array:
    """The next numbers of BOUND_BITS bits, no smaller."""
    fraction, exponent = np.frexp(bound)
    unit = float(1 << BOUND_BITS)
    # Upward, so that a bound stays a bound.
    return np.where(np.isfinite(bound), np.ldexp(np.ceil(fraction * unit) / unit, exponent), bound)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write a suite that gets its name `path` once it is whole.

    Raises OracleError where it cannot be written; nothing is left of it then.
    """
    try:
        with targets.whole_file(path) as draft:
            yield draft
    except (OSError, ValueError) as error:
        raise OracleError(
            f"{path}: cannot be written ({error}); choose another place or make room"
        ) from error


def write_suite(path: str | Path, questions: Iterable[Question], seed: int) -> str:
    """Write a suite, in one go under its final name once it is complete; returns its SHA-256."""
    with Draft() as draft:
        digest = _write(draft, questions, seed)
        image = draft.image()
    with whole_file(Path(path)) as partial:
        image.write(partial)
        image.seal(partial)
    return digest


def _write(draft: Draft, questions: Iterable[Question], seed: int) -> str:
    from neocpu.oracle.semantics import PRESETS, SWITCHES

    hashes = []
    for question in questions:
        name = question.case.name
        sha256 = question.sha256
        _write_question(draft, f"cases/{name}", question, sha256)
        hashes.append((name, sha256))
    for switch in SWITCHES.values():
        draft.group(f"switches/{switch.name}")
        draft.set(f"switches/{switch.name}", {"kind": switch.kind, "about": switch.about})
    draft.group("presets")
    draft.set(
        "presets", {preset: " ".join(sorted(switches)) for preset, switches in PRESETS.items()}
    )
    digest = suite_digest(hashes, seed)
    draft.set(
        "",
        {
            "format": FORMAT,
            "version": VERSION,
            "seed": seed,
            "neocpu": __version__,
            "sha256": digest,
            "how_to_answer": HOW_TO_ANSWER,
        },
    )
    return digest


def _write_question(draft: Draft, place: str, question: Question, sha256: str) -> None:
    from neocpu.oracle.ops import OPERATORS

    case = question.case
    draft.group(place)
    draft.set(place, {"op": case.op, "about": case.about, "sha256": sha256})
    draft.group(f"{place}/options")
    draft.set(f"{place}/options", case.options)
    fields = OPERATORS[case.op].inputs
    for name, array in case.inputs.items():
        field = fields.get(name.rsplit("/", 1)[-1], Field(""))
        _put(draft, f"{place}/inputs/{name}", array, field)
    for name, expected in question.outputs.items():
        output = f"{place}/outputs/{name}"
        draft.group(output)
        draft.set(
            output,
            {
                "about": expected.field.about,
                "axes": ", ".join(expected.field.axes),
                "format": expected.truth.format,
                "exact": expected.truth.exact,
                "is_output": True,
            },
        )
        for part, array in parts_of(expected).items():
            _put(draft, f"{output}/{part}", array, None)


def _put(draft: Draft, name: str, array: Array, field: Field | None) -> None:
    codes = codes_of(array)
    form = format_of(array)
    draft.put(name, codes, compress=codes.nbytes > COMPRESSED)
    if form:
        draft.set(name, {"format": form})
    if field is not None:
        draft.set(name, {"about": field.about, "axes": ", ".join(field.axes)})


class Suite(Mapping[str, Question]):
    """Questions by name, read when asked for and checked against their hashes; a context manager.

    Attributes: path, seed, sha256, neocpu (the version that wrote it).
    Raises OracleError for a file that is missing, foreign, newer, truncated or damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = File(self.path, KIND)
        try:
            version = self._file.attribute("version", int)
            if version not in READABLE:
                raise OracleError(
                    f"{path}: suite of version {version}, this neocpu reads "
                    f"{' and '.join(map(str, READABLE))}: export again"
                )
            self.seed = self._file.attribute("seed", int)
            self.sha256 = self._file.attribute("sha256", str)
            self.neocpu = self._file.attribute("neocpu", str)
            self._hashes = {
                name: self._file.attribute("sha256", str, f"cases/{name}")
                for name in self._file.children("cases")
            }
            if suite_digest(self._hashes.items(), self.seed, version) != self.sha256:
                raise OracleError(
                    f"{path}: has not the cases, or the seed, that it was written with; export it "
                    "again"
                )
        except BaseException:
            self._file.close()
            raise

    def __getitem__(self, name: str) -> Question:
        if name not in self._hashes:
            raise KeyError(name)
        try:
            question = _read(self._file, name)
            sha256 = question.sha256
        except PROBLEMS as error:
            raise OracleError(
                f"{self.path}: case {name} is damaged ({one_line(error)}); export the suite again"
            ) from error
        if sha256 != self._hashes[name]:
            raise OracleError(
                f"{self.path}: case {name} was changed after it was written; export the suite again"
            )
        return question

    def __iter__(self) -> Iterator[str]:
        return iter(self._hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _read(file: File, name: str) -> Question:
    place = f"cases/{name}"
    inputs: dict[str, Array] = {}
    outputs: dict[str, Expected] = {}
    for key in _below(file, f"{place}/inputs"):
        if file.objects[f"{place}/inputs/{key}"].dtype is not None:
            inputs[key] = _get(file.array(f"{place}/inputs/{key}"))
    for key in _below(file, f"{place}/outputs"):
        output = f"{place}/outputs/{key}"
        if file.attributes(output).get("is_output"):
            outputs[key] = _expected(file, output)
    case = Case(
        name=name,
        op=file.attribute("op", str, place),
        inputs=inputs,
        options=file.attributes(f"{place}/options"),
        about=file.attribute("about", str, place),
    )
    return Question(case, outputs)


def _below(file: File, place: str) -> Iterator[str]:
    """Names of all that is below a group, relative to it."""
    for child in file.children(place):
        yield child
        yield from (f"{child}/{name}" for name in _below(file, f"{place}/{child}"))


def _expected(file: File, place: str) -> Expected:
    parts = {
        name: _get(file.array(f"{place}/{name}"))
        for name in file.children(place)
        if file.objects[f"{place}/{name}"].dtype is not None
    }
    canonical = parts.pop("canonical", None)
    truth = Truth(
        **parts,
        exact=file.attribute("exact", bool, place),
        format=file.attribute("format", str, place),
    )
    axes = tuple(axis for axis in file.attribute("axes", str, place).split(", ") if axis)
    return Expected(truth, canonical, Field(file.attribute("about", str, place), axes))


def _get(stored: StoredArray) -> Array:
    if stored.nbytes > MOST_BYTES:
        raise ValueError(f"{stored.name} takes {stored.nbytes:,} bytes")
    array = stored.read()
    form = stored.attributes.get("format", "")
    if isinstance(form, str) and form in CODES:
        return coded(array, form).reshape(array.shape)
    return array


def golden_cases() -> list[Case]:
    """The cases of the suite that the repository keeps (seed 0).

    Small ones of every operator, spread over its list of cases.
    """
    from neocpu.oracle.cases import all_cases

    small: dict[str, list[Case]] = {}
    for case in all_cases():
        if sum(array.nbytes for array in case.inputs.values()) <= GOLDEN_BYTES:
            small.setdefault(case.op, []).append(case)
    golden = []
    for cases in small.values():
        spread = {
            (2 * k + 1) * len(cases) // (2 * CASES_PER_OPERATOR) for k in range(CASES_PER_OPERATOR)
        }
        golden += [cases[k] for k in sorted(spread)]
    return golden
