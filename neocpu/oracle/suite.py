"""What is asked? Suites of cases in one self-describing HDF5 file, answerable without neocpu.

    /                           attributes: format, version, seed, neocpu, sha256, how_to_answer
    /cases/NAME                 attributes: op, about, sha256
    /cases/NAME/inputs/…        arrays; attributes: about (shape and dtype), axes (their names)
    /cases/NAME/options         one attribute per option, complete
    /cases/NAME/outputs/OUT/…   canonical, reference, bound (and lower, upper, probability);
                                attributes: about, axes, format (of elements), exact
    /switches, /presets         what the oracle can tell apart, in words

The hash covers names, options and numbers, not HDF5's bytes nor the prose; all NaNs hash alike.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np

from neocpu import __version__
from neocpu.errors import OracleError
from neocpu.oracle.adapters import CODES, Array, coded, codes_of, format_of
from neocpu.oracle.operator import Case, Field, Truth

FORMAT = "neocpu-oracle-suite"
VERSION = 1
CASES_PER_OPERATOR = 2  # in the golden suite
GOLDEN_BYTES = 2048  # of the inputs of a case in it, at most
OPTIONAL_PARTS = ("lower", "upper", "probability")
HOW_TO_ANSWER = (
    "Answer case by case: an array named CASE/OUT for each output, shaped as "
    "outputs/OUT/canonical, in HDF5, npz or safetensors; leave out what you do not have. "
    "Then: neocpu oracle check SUITE.h5 ANSWERS"
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
            for part, array in _arrays(expected).items():
                _hash(digest, f"outputs/{name}/{part}", array)
        return digest.hexdigest()


def _line(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _arrays(expected: Expected) -> dict[str, Array]:
    truth = expected.truth
    parts = {"canonical": expected.canonical, "reference": truth.reference, "bound": truth.bound}
    parts |= {name: getattr(truth, name) for name in OPTIONAL_PARTS}
    return {name: np.asarray(array) for name, array in parts.items() if array is not None}


def _hash(digest: Any, name: str, array: Array) -> None:
    codes = np.ascontiguousarray(codes_of(array))
    codes = codes.astype(codes.dtype.newbyteorder("<"))
    if codes.dtype.kind == "f":
        codes = np.where(np.isnan(codes), np.array(np.nan, codes.dtype), codes).astype(codes.dtype)
    digest.update(_line([name, codes.dtype.str, list(np.shape(array)), format_of(array)]))
    digest.update(codes.tobytes())


def suite_digest(questions: Iterable[tuple[str, str]], seed: int) -> str:
    """SHA-256 of a suite from (name, hash) of its questions."""
    return hashlib.sha256(_line([FORMAT, VERSION, seed, sorted(questions)])).hexdigest()


def ask(case: Case, backend: str = "kernels") -> Question:
    """The question of a case: canonical bits by a backend, and the exact truth."""
    from neocpu.oracle.ops import OPERATORS

    op = OPERATORS[case.op]
    options = op.complete(case.options)
    with np.errstate(all="ignore"):
        truths = op.truth(case.inputs, options)
        bits = op.run(case.inputs, options, backend)
    fields = {name: op.outputs.get(name.rsplit("/", 1)[-1], Field("")) for name in truths}
    full = Case(case.name, case.op, case.inputs, options, case.about)
    return Question(
        full,
        {name: Expected(truth, bits.get(name), fields[name]) for name, truth in truths.items()},
    )


def write_suite(path: str | Path, questions: Iterable[Question], seed: int) -> str:
    """Write a suite, in one go under its final name once it is complete; returns its SHA-256."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    try:
        with h5py.File(partial, "w", libver="v110") as file:
            digest = _write(file, questions, seed)
        partial.replace(path)
    except OSError as error:
        raise OracleError(
            f"{path}: cannot be written ({error}); choose another place or make room"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return digest


def _write(file: h5py.File, questions: Iterable[Question], seed: int) -> str:
    from neocpu.oracle.semantics import PRESETS, SWITCHES

    hashes = []
    for question in questions:
        name = question.case.name
        sha256 = question.sha256
        _write_question(file.create_group(f"cases/{name}"), question, sha256)
        hashes.append((name, sha256))
    for switch in SWITCHES.values():
        group = file.create_group(f"switches/{switch.name}")
        group.attrs.update({"kind": switch.kind, "about": switch.about})
    file.create_group("presets").attrs.update(
        {preset: " ".join(sorted(switches)) for preset, switches in PRESETS.items()}
    )
    digest = suite_digest(hashes, seed)
    file.attrs.update(
        {
            "format": FORMAT,
            "version": VERSION,
            "seed": seed,
            "neocpu": __version__,
            "sha256": digest,
            "how_to_answer": HOW_TO_ANSWER,
        }
    )
    return digest


def _write_question(group: h5py.Group, question: Question, sha256: str) -> None:
    from neocpu.oracle.ops import OPERATORS

    case = question.case
    group.attrs.update({"op": case.op, "about": case.about, "sha256": sha256})
    group.create_group("options").attrs.update(case.options)
    fields = OPERATORS[case.op].inputs
    for name, array in case.inputs.items():
        _put(group, f"inputs/{name}", array, fields.get(name.rsplit("/", 1)[-1], Field("")))
    for name, expected in question.outputs.items():
        output = group.create_group(f"outputs/{name}")
        output.attrs.update(
            {
                "about": expected.field.about,
                "axes": ", ".join(expected.field.axes),
                "format": expected.truth.format,
                "exact": expected.truth.exact,
                "is_output": True,
            }
        )
        for part, array in _arrays(expected).items():
            _put(output, part, array, None)


def _put(group: h5py.Group, name: str, array: Array, field: Field | None) -> None:
    codes = codes_of(array)
    form = format_of(array)
    compression: dict[str, Any] = {}
    if codes.nbytes > 512:
        compression = {"compression": "gzip", "compression_opts": 9, "shuffle": True}
    dataset = group.create_dataset(name, data=codes, track_times=False, **compression)
    if form:
        dataset.attrs["format"] = form
    if field is not None:
        dataset.attrs.update({"about": field.about, "axes": ", ".join(field.axes)})


class Suite(Mapping[str, Question]):
    """Questions by name, read when asked for and checked against their hashes; a context manager.

    Attributes: path, seed, sha256, neocpu (the version that wrote it).
    Raises OracleError for a file that is missing, foreign, newer, truncated or damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise OracleError(
                f"{path}: no such file; make a suite with `neocpu oracle export {path}`"
            )
        try:
            self._file = h5py.File(self.path, "r", locking=False)
        except OSError as error:
            raise OracleError(
                f"{path}: not an HDF5 file, or truncated ({error}); export it again"
            ) from error
        attributes = self._file.attrs
        if attributes.get("format") != FORMAT:
            self._file.close()
            raise OracleError(
                f"{path}: an HDF5 file, but not an oracle suite; is it the file of answers?"
            )
        if int(attributes.get("version", 0)) != VERSION:
            self._file.close()
            raise OracleError(
                f"{path}: suite of version {attributes.get('version')}, "
                f"this neocpu reads {VERSION}: export again"
            )
        self.seed = int(attributes["seed"])
        self.sha256 = str(attributes["sha256"])
        self.neocpu = str(attributes["neocpu"])
        self._names = list(self._file.get("cases", {}))

    def __getitem__(self, name: str) -> Question:
        if name not in self._names:
            raise KeyError(name)
        try:
            group = self._file[f"cases/{name}"]
            question = _read(name, group)
            written_sha256 = str(group.attrs["sha256"])
        except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:
            raise OracleError(
                f"{self.path}: case {name} is damaged ({error}); export the suite again"
            ) from error
        if question.sha256 != written_sha256:
            raise OracleError(
                f"{self.path}: case {name} was changed after it was written; export the suite again"
            )
        return question

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _read(name: str, group: h5py.Group) -> Question:
    inputs: dict[str, Array] = {}
    outputs: dict[str, Expected] = {}

    def visit_input(key: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            inputs[key] = _get(item)

    def visit_output(key: str, item: Any) -> None:
        if isinstance(item, h5py.Group) and item.attrs.get("is_output"):
            outputs[key] = _expected(item)

    if "inputs" in group:
        group["inputs"].visititems(visit_input)
    group["outputs"].visititems(visit_output)
    options = {key: _plain(value) for key, value in group["options"].attrs.items()}
    return Question(
        Case(name, str(group.attrs["op"]), inputs, options, str(group.attrs["about"])), outputs
    )


def _expected(group: h5py.Group) -> Expected:
    parts = {name: _get(item) for name, item in group.items() if isinstance(item, h5py.Dataset)}
    canonical = parts.pop("canonical", None)
    truth = Truth(**parts, exact=bool(group.attrs["exact"]), format=str(group.attrs["format"]))
    axes = tuple(axis for axis in str(group.attrs["axes"]).split(", ") if axis)
    return Expected(truth, canonical, Field(str(group.attrs["about"]), axes))


def _get(dataset: h5py.Dataset) -> Array:
    array = np.asarray(dataset[()])
    form = str(dataset.attrs.get("format", ""))
    return coded(array, form).reshape(array.shape) if form in CODES else array


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


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
