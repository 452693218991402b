"""What does the name of a column say? That its values are codes, or outcomes as the label is.
Those give the label away, and so do columns whose values do.
"""

import re

import polars as pl

from neocpu.train.advice.probe import Probe, auc_alone

# What logs number: a name ends with one of these, or is one and "id".
THINGS = (
    *("ad", "adgroup", "advertiser", "app", "article", "artist", "asin", "author", "banner"),
    *("brand", "browser", "campaign", "channel", "city", "country", "creative", "customer"),
    *("device", "doc", "game", "gender", "genre", "item", "member", "movie", "news", "page"),
    *("place", "product", "publisher", "query", "region", "reviewer", "seller", "session", "shop"),
    *("site", "song", "store", "user", "video", "visitor"),
)
CODE = re.compile(
    r"(^|_)(id|ids|code|type|category|cat|zip|postcode|group|cluster|hash|isbn"
    rf"|({'|'.join(THINGS)})(id)?)$"
)
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
# What users do once they are shown something, as logs call it. Counts and rates of the past have
# longer names (clicks_30d, user_ctr), which are none of these.
WORDS = frozenset(
    (
        *(
            "click",
            "clicks",
            "clicked",
            "click_bool",
            "clk",
            "nonclk",
            "view_through",
            "profile_enter",
        ),
        *("conversion", "conversions", "conversion_id", "converted", "convert", "attributed"),
        *("cart", "add_to_cart", "addtocart", "cart_add", "bookmark", "favorite", "favourite"),
        *("buy", "bought", "purchase", "purchases", "purchased", "order", "orders", "ordered"),
        *("sale", "sales", "sold", "paid", "pay", "payment", "transaction", "transaction_id"),
        *("transactionid", "revenue", "gmv", "gross_bookings", "gross_bookings_usd"),
        *("booking", "booked", "booking_bool", "install", "installed", "download", "downloaded"),
        *("rating", "ratings", "stars", "like", "liked", "dislike", "hate", "follow", "followed"),
        *("forward", "dwell", "watch", "watched", "watch_ratio", "long_view", "play", "played"),
        *("finish", "finished", "completed", "won", "win_price", "paying_price", "payprice"),
    )
)
# the duration of what users do: watch_time, dwellTime, play_duration_ms
DURATION = re.compile(
    r"(watch|watched|dwell|stay|play|playing|played|view|viewing|listen|listening|read|reading"
    r"|attributed|attribution|conversion|comment_stay)_"
    r"?(time|duration|seconds|secs|timestamp|delay|ratio|rate)(_?(s|ms|sec|secs|seconds))?"
)
PREFIX = re.compile(r"^(is|has|did|was)_")


def _words(name: str) -> str:
    """A name as words between underscores: userId, user-id and User ID are user_id."""
    return re.sub(r"\W+", "_", CAMEL.sub("_", name)).lower().strip("_")


def names_code(name: str) -> bool:
    """Does a column's name say that its numbers are names?"""
    return bool(CODE.search(_words(name)))


def names_outcome(name: str) -> bool:
    """Does a column's name say that it is an outcome: a click, a purchase, the time spent?"""
    words = PREFIX.sub("", _words(name))
    return words in WORDS or bool(DURATION.fullmatch(words))


TELLS = 0.98  # AUC of a column alone from which it is told
HINTS = 0.75  # the same of one whose name says that it is an outcome


def outcome_reason(probe: Probe, values: pl.Series, label: str) -> str:
    """Why a column is an outcome that is known only when the label is; "" if it is none.

    A purchase beside a click is one by its name; beside a label that is no such thing (churn), or
    whose name does not say what it is (target), orders may be those of the past.
    """
    if not names_outcome(values.name):
        return ""
    if names_outcome(label):
        return f"an outcome as {label} is, known only afterwards"
    auc = _auc(probe, values)
    if auc < HINTS:
        return ""
    return f"an outcome by its name, and it tells {label} (AUC {auc:.2f} on rows held out)"


def _auc(probe: Probe, values: pl.Series) -> float:
    """The AUC of a column alone; 0.5 where there are no clicks to tell, or too few."""
    if not probe.clicks or not probe.serves or values.dtype.is_nested():
        return 0.5
    return auc_alone(probe, values)


def gives_away(frame: pl.DataFrame, name: str, label: str) -> bool:
    """Does every value that occurs repeatedly go with one of several values of the label?"""
    if frame[label].n_unique() == 1:
        return False
    pair = frame.select(pl.col(name).cast(pl.String), pl.col(label).alias("__label")).drop_nulls()
    groups = pair.group_by(name).agg(
        pl.len().alias("__rows"), pl.col("__label").n_unique().alias("__labels")
    )
    # one or two rows agree with their label by chance
    repeated = groups.filter(pl.col("__rows") > 2)
    pure = repeated.filter(pl.col("__labels") == 1)
    covered = int(repeated["__rows"].sum())
    return 1 < repeated.height == pure.height and covered > 0.5 * pair.height


def warning(probe: Probe, values: pl.Series, label: str) -> str:
    """A line about a column that alone tells nearly all of the label; "" for any other."""
    auc = _auc(probe, values)
    if auc < TELLS:
        return ""
    return (
        f"careful: {values.name} alone tells {label} (AUC {auc:.3f} on rows held out); if it is "
        f"known only afterwards, leave it out: --leave-out {values.name}"
    )
