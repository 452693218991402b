"""What does the name of a column say? That its values are codes, or outcomes as the label is."""

import re

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
        *("click", "clicks", "clicked", "click_bool", "view_through", "profile_enter"),
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
