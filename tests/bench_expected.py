"""What does `neocpu init` see in each of the logs of `bench_logs.py`?"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Expected:
    """What `neocpu init` sees in a log.

    label : its column. loss : "bce" or "mse". roles : of the columns that matter: role, and kind,
    transform or form where it matters. wishes : what the user says. refused : what `init` says
    where the user says nothing.
    """

    label: str = ""
    loss: str = "bce"
    roles: Mapping[str, str] = field(default_factory=dict)
    wishes: Mapping[str, object] = field(default_factory=dict)
    refused: str = ""


EXPECTED: Mapping[str, Expected] = {
    "movielens_100k": Expected("c2", "mse", {"c3": "time unix", "c0": "dense"}),
    "movielens_20m": Expected("rating", "mse", {"timestamp": "time unix", "userId": "category"}),
    "movielens_25m": Expected("rating", "mse", {"timestamp": "time unix_ms", "title": "category"}),
    "movielens_tags": Expected("label", roles={"tag": "category", "timestamp": "time unix"}),
    "criteo": Expected("label", roles={"I1": "dense log1p", "C1": "category hex"}),
    "avazu": Expected("click", roles={"hour": "time YYMMDDHH", "id": "left out"}),
    "kdd2012": Expected("c0", roles={"c2": "category int", "c3": "category int", "c5": "dense"}),
    "adult": Expected(
        "income", roles={"age": "dense standard", "capital-gain": "dense", "sex": "category"}
    ),
    "adult_data": Expected(
        "c7", roles={"c0": "dense standard", "c1": "category", "c4": "category"}
    ),
    "adult_test": Expected(
        "c7", roles={"c0": "dense standard", "c1": "category", "c4": "category"}
    ),
    "census": Expected("c5", roles={"c0": "dense standard", "c2": "category text"}),
    "book_crossing": Expected(
        "Book-Rating", "mse", {"User-ID": "category int", "ISBN": "category text"}
    ),
    "last_fm": Expected("weight", "mse", {"userID": "category int", "artistID": "category int"}),
    "steam": Expected(
        "c2",
        roles={"c0": "category int", "c3": "dense", "c4": "left out"},
        wishes={"label": "c2", "positive": ["play"]},
        refused="which column is the label",
    ),
    "yelp": Expected(
        "stars", "mse", {"review_id": "left out", "user_id": "category", "date": "time iso"}
    ),
    "open_bandit": Expected(
        "click",
        roles={"index": "left out", "timestamp": "time iso", "propensity_score": "dense standard"},
    ),
    "kuairec": Expected(
        "watch_ratio",
        "mse",
        {
            "play_duration": "left out",
            "video_duration": "dense standard",
            "date": "time %Y%m%d",
            "timestamp": "time unix",
        },
    ),
    "taobao": Expected(
        "c3",
        roles={"c0": "dense", "c1": "category int", "c4": "time unix"},
        wishes={"positive": ["buy"]},
        refused="which column is the label",
    ),
    "tianchi": Expected(
        "behavior_type",
        roles={"user_id": "category int", "time": "time iso", "user_geohash": "category"},
        wishes={"label": "behavior_type", "threshold": 4.0},
    ),
    "ali_ccp": Expected(
        "click", roles={"sample_id": "left out", "purchase": "left out", "f109_14": "list"}
    ),
    "diginetica": Expected("is_click", roles={"items": "list", "userId": "category int"}),
    "retailrocket": Expected(
        "event",
        roles={"timestamp": "time unix_ms", "transactionid": "left out", "itemid": "category int"},
        wishes={"label": "event", "positive": ["transaction"]},
        refused="has 3 texts, 'addtocart', 'transaction', 'view'; say which",
    ),
    "gowalla": Expected("c5", roles={"c1": "time iso", "c2": "dense standard", "c4": "category"}),
    "frappe": Expected(
        "cnt",
        "mse",
        {"user": "category int", "weather": "category text"},
        wishes={"label": "cnt"},
        refused="which column is the label",
    ),
    "epinions": Expected("c2", "mse", {"c0": "dense", "c1": "dense"}),
    "netflix": Expected("rating", "mse", {"date": "time iso", "movie_id": "category int"}),
    "yoochoose": Expected("c4", roles={"c1": "time iso", "c2": "category", "c3": "category text"}),
    "million_songs": Expected(
        "c0",
        "mse",
        {"c1": "dense standard", "c12": "dense standard"},
        wishes={"label": "c0"},
        refused="which column is the label",
    ),
    "hm": Expected(
        "sales_channel_id",
        roles={"t_dat": "time iso", "article_id": "category text", "price": "dense standard"},
        wishes={"label": "sales_channel_id"},
        refused="which column is the label",
    ),
    "expedia": Expected(
        "click_bool",
        roles={
            "date_time": "time iso",
            "booking_bool": "left out",
            "gross_bookings_usd": "left out",
            "price_usd": "dense",
        },
    ),
    "outbrain": Expected("clicked", roles={"timestamp": "left out", "geo_location": "category"}),
    "titanic": Expected(
        "Survived", roles={"Age": "dense standard", "Name": "left out", "Sex": "category text"}
    ),
    "credit": Expected(
        "default.payment.next.month", roles={"LIMIT_BAL": "dense", "ID": "left out"}
    ),
    "bank": Expected("y", roles={"job": "category", "age": "dense standard", "balance": "dense"}),
    "covtype": Expected(
        "Cover_Type",
        roles={"Elevation": "dense standard", "Soil_0": "dense"},
        wishes={"label": "Cover_Type", "positive": ["1"]},
    ),
    "german_credit": Expected("c4", roles={"c0": "category", "c1": "dense standard"}),
    "heart": Expected("target", roles={"age": "dense standard", "chol": "dense standard"}),
    "sensors": Expected("label", roles={"seen": "time %d.%m.%Y %H:%M:%S", "heat": "dense"}),
    "vectors": Expected("clicked", roles={"embedding": "dense", "user_id": "category int"}),
    "ad_funnel": Expected(
        "click",
        roles={
            "conversion": "left out",
            "revenue": "left out",
            "dwell_time": "left out",
            "clicks_30d": "dense",
            "campaign": "category int",
        },
    ),
    "int_codes": Expected("click", roles={"shop_id": "category int", "brand_id": "category int"}),
}
