"""Which column of a log is the label, and what of it is a click?"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from neocpu.core.errors import ConfigError, listed
from neocpu.core.records import toml_text
from neocpu.train.advice.columns import LogColumn
from neocpu.train.advice.numbers import are_numbers, are_whole, numbers_in

LABELS = (
    *("label", "click", "clicked", "is_click", "is_clicked", "click_bool", "clk", "target", "y"),
    *("converted", "conversion", "is_attributed", "purchase", "purchased", "is_booking"),
    *("rating", "ratings", "stars", "overall", "book-rating", "response", "survived"),
    *("default.payment.next.month", "default payment next month", "watch_ratio"),
)
# names that are labels where nothing else looks like one
LIKELY = ("churn", "default", "income", "deposit", "class", "like", "is_like", "weight", "hours")
# names of what users did, where it is a text of several
EVENTS = ("event", "event_type", "behavior", "behavior_type", "action", "interaction")
# the texts of a label of clicks that the parser knows: no, yes
CLICKS = (
    *({"0", "1"}, {"-1", "1"}, {"0.0", "1.0"}, {"-1.0", "1.0"}),
    *({"false", "true"}, {"False", "True"}, {"FALSE", "TRUE"}),
)
YES = frozenset(
    (
        *("yes", "y", "true", "t", "click", "clicked", "buy", "bought", "purchase", "purchased"),
        *("play", "played", "positive", "pos", "good", "like", "liked", "success", "won", "win"),
        *("churn", "churned", "default", "spam", "subscribed", "recommended"),
    )
)
DENIED = re.compile(r"^(not|non|no|un|dis)[-_ ]?(?=.)")
TEXTS = 20  # of a label, that are shown
RATINGS = 11  # numbers of a scale of ratings, at most
SCALE = 20  # whole numbers, up to which a label is a rating
LIKED = 0.75  # of the way from the least to the highest rating: 4 of 1 to 5

POSITIVES = (
    "A log of choices alone (views, purchases) gets rows for what was not chosen by `neocpu data "
    "negatives LOG --user COLUMN --item COLUMN --out LABELLED.csv`"
)


def guess_label(frame: pl.DataFrame, header: bool = True, positive: Sequence[str] = ()) -> str:
    """The column that is most likely the label. Raises ConfigError where none looks like one.

    By its name, or as the only column whose values are 0 and 1, or two texts of which one says yes.
    header : whether columns have names; else the only column of 1 and 2, or of a scale, will do.
    positive : texts that the label has.
    """
    if len(saying := [name for name in frame.columns if _has(frame[name], positive)]) == 1:
        return saying[0]
    by_name = {name.lower(): name for name in reversed(frame.columns)}
    for name in LABELS:
        if name in by_name:
            return by_name[name]
    binary = [name for name in frame.columns if _is_click(frame[name])]
    if len(binary) == 1 or (binary and binary[0] == frame.columns[0]):
        return binary[0]
    texts = [name for name in frame.columns if _says_yes(frame[name])]
    if not binary and (len(texts) == 1 or (texts and texts[-1] == frame.columns[-1])):
        return texts[-1]
    for name in LIKELY:
        if name in by_name:
            return by_name[name]
    for name in EVENTS:
        if name in by_name and not are_numbers(frame[by_name[name]].drop_nulls()):
            return by_name[name]
    for is_label in (_is_pair, _is_rating):
        names = [name for name in frame.columns if is_label(frame[name])]
        if not header and not binary and len(names) == 1:
            return names[0]
    clicks = f"{len(binary)} columns hold 0 and 1 only" if binary else "none holds 0 and 1 only"
    advice = "" if binary else f". {POSITIVES}"
    raise ConfigError(
        f"which column is the label? No name says it, and {clicks}; name it with --label COLUMN "
        f"(from Python label=); the log has {listed([*map(repr, frame.columns)], 60)}{advice}"
    )


def _has(values: pl.Series, texts: Sequence[str]) -> bool:
    """Does a column of texts have all of these, and are there any?"""
    return values.dtype == pl.String and bool(texts) and {*texts} <= {*values.unique().to_list()}


def _is_click(values: pl.Series) -> bool:
    """Are all values 0 or 1, or other words for them, and both there?"""
    if values.null_count() or values.dtype.is_nested():
        return False
    return {*_texts(values, 3)} in CLICKS


def _says_yes(values: pl.Series) -> bool:
    """Does a column hold two texts, of which one says yes?"""
    if values.null_count() or values.dtype != pl.String:
        return False
    groups = _answers(_texts(values, 5))
    return len(groups) == 2 and bool(_affirmative([*groups]))


def _levels(values: pl.Series) -> list[float]:
    """The values of a column of few whole numbers, ascending; [] of any other."""
    if values.null_count() or values.dtype.is_nested() or values.n_unique() > RATINGS:
        return []
    numbers = numbers_in(values).unique().sort()
    return [] if numbers.null_count() or not are_whole(numbers) else numbers.to_list()


def _is_pair(values: pl.Series) -> bool:
    """Does a column hold 1 and 2 only?"""
    return _levels(values) == [1, 2]


def _is_rating(values: pl.Series) -> bool:
    """Does a column hold all numbers of a scale from 0 or 1 on?"""
    levels = _levels(values)
    return len(levels) > 2 and levels in ([*range(len(levels))], [*range(1, len(levels) + 1)])


def _texts(values: pl.Series, most: int) -> list[str]:
    """The first distinct values, as texts, in order."""
    return sorted(map(str, values.drop_nulls().unique().head(most).to_list()))


def _answers(texts: Sequence[str]) -> Mapping[str, list[str]]:
    """What texts say, without blanks, points and capitals -> the texts that say it.

    The two files of the census write >50K and >50K. for one answer.
    """
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(text.strip(" .").lower(), []).append(text)
    return groups


def with_positives(label: LogColumn, values: pl.Series) -> LogColumn:
    """A label of texts with what other values write for the same answer."""
    said = _answers(label.positive)
    others = _answers(_texts(values, TEXTS))
    texts = [text for answer in said for text in others.get(answer, ())]
    return replace(label, positive=tuple(dict.fromkeys((*label.positive, *texts))))


def _affirmative(answers: Sequence[str]) -> str:
    """Which of two answers says yes; "": neither does."""
    for answer, other in (answers, answers[::-1]):
        if answer in YES and other not in YES:
            return answer
        if answer.startswith(">") and other[:1] in ("<", "≤"):
            return answer
        if answer.endswith("+") and other.startswith("-"):
            return answer
        # no-click, not_bought, unsubscribed, and what is denied
        if DENIED.sub("", other) == answer:
            return answer
    return ""


def label_column(
    values: pl.Series,
    positive: Sequence[str] = (),
    threshold: float | None = None,
    classes: str = "",
) -> LogColumn:
    """The label: a click, a number, or what makes a click of other values, and why.

    positive, threshold : the user's. classes : as of `Roles`. Raises ConfigError for values of
    which none is chosen, and for empty fields.
    """
    if values.null_count():
        raise ConfigError(
            f"the label {values.name!r} has {values.null_count():,} empty fields; choose another "
            "column with --label COLUMN, or remove these rows (a config that is there already "
            "leaves them out with data.on_error=skip)"
        )
    if positive:
        if missing := {*positive} - {*values.cast(pl.String).unique().to_list()}:
            raise ConfigError(f"the label {values.name!r} never says {listed(sorted(missing), 8)}")
        return _click(values, positive=tuple(positive), why=f"a click where it is {_or(positive)}")
    if threshold is not None:
        return _click(values, threshold=threshold, why=f"a click from {threshold:g} on")
    if _is_click(values):
        low, high = _texts(values, 3)
        return _click(values, why=f"its values are {low} and {high}")
    if numbers_in(values).null_count():
        return _text_label(values, classes)
    return _number_label(values)


def _click(
    values: pl.Series, *, positive: tuple[str, ...] = (), threshold: float | None = None, why: str
) -> LogColumn:
    return LogColumn(values.name, "label", "click", positive=positive, threshold=threshold, why=why)


def _number_label(values: pl.Series) -> LogColumn:
    """The label of numbers, two of them or more."""
    if values.n_unique() == 1:
        why = f"it is {values[0]} in all rows, so there is nothing to learn. {POSITIVES}"
        return LogColumn(values.name, "label", "number", why=why)
    numbers = numbers_in(values)
    low, *others = numbers.unique().sort().to_list()
    if len(others) == 1:
        why = f"its values are {low:g} and {others[0]:g}: a click from {others[0]:g} on"
        return _click(values, threshold=others[0], why=why)
    return LogColumn(
        values.name, "label", "number", why="its values are numbers other than 0 and 1"
    )


def rating_threshold(values: pl.Series) -> float | None:
    """From which rating on a user liked it, of a label whose values are few numbers; else None."""
    levels = numbers_in(values).drop_nulls().unique().sort()
    if not 3 <= levels.len() <= SCALE:
        return None
    low, high = float(levels[0]), float(levels[-1])
    return float(levels.filter(levels >= low + LIKED * (high - low))[0])


def _text_label(values: pl.Series, classes: str) -> LogColumn:
    """The label of texts: the one of two that says yes, or the rarer one; or classes."""
    texts = _texts(values, TEXTS + 1)
    groups = _answers(texts)
    if classes == "all" or (classes and not (len(groups) == 2 and _affirmative([*groups]))):
        count = values.n_unique()
        why = f"its {count:,} texts are classes"
        return LogColumn(values.name, "label", "class", distinct=count, why=why)
    if len(groups) != 2:
        shown = f"{'more than ' if len(texts) > TEXTS else ''}{min(len(texts), TEXTS)} texts"
        raise ConfigError(
            f"the label {values.name!r} has {shown}, {listed([*map(repr, texts)], 8)}; say "
            "which are a click with --positive TEXT (from Python positive=), or choose another "
            "column with --label COLUMN"
        )
    answer = _affirmative([*groups])
    reason = "which says yes" if answer else "the rarer one"
    if not answer:
        counts = {key: int(values.is_in(each).sum()) for key, each in groups.items()}
        answer = min(counts, key=lambda key: counts[key])
    positive = tuple(groups[answer])
    shown = _or([text for texts in groups.values() for text in texts], " and ")
    return _click(
        values,
        positive=positive,
        why=f"its values are {shown}: a click is {_or(positive)}, {reason}",
    )


def _or(texts: Sequence[str], word: str = " or ") -> str:
    return word.join(map(repr, texts))


def label_numbers(values: pl.Series, label: LogColumn) -> pl.Series:
    """What the label of each row is, f64, null where it is none."""
    if label.positive:
        return values.cast(pl.String).is_in(list(label.positive)).cast(pl.Float64)
    if label.kind == "class":
        return values.cast(pl.String).rank("dense").cast(pl.Float64) - 1
    words = values.cast(pl.String).str.to_lowercase()
    as_words = words.replace_strict({"true": 1.0, "false": 0.0}, default=None)
    numbers = numbers_in(values).fill_null(as_words)
    if label.threshold is not None:
        return (numbers >= label.threshold).cast(pl.Float64)
    # -1 is how some logs write a 0
    return (numbers == 1).cast(pl.Float64) if label.kind == "click" else numbers


def weight_overrides(schema: Mapping[str, Any], weight: str) -> list[str]:
    """Overrides of a drafted config, whose samples a column then weighs; schema : of its table."""
    if weight == schema["label"]["column"]:
        raise ConfigError(f"weight {weight}: it is the label; name another column")
    labels = [schema["label"], {"column": weight, "kind": "number"}]
    return [f"data.schema.label={toml_text(labels)}", f"data.sample_weight={toml_text(weight)}"]
