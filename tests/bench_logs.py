"""Small logs in the forms of well-known ones: what `neocpu init` has to make sense of.

`LOGS` has a function for each that writes its files into a folder. A signal is planted: some
columns move the label. Files, names, delimiters, quotes, times and missing values are written as in
the public log; the rows are drawn.
"""

import gzip
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path

import polars as pl

ROWS = 400
START = 1_400_000_000  # seconds since 1970 of the first row
Row = Sequence[object]


def _draw(name: str) -> random.Random:
    return random.Random(name)


def _chance(draw: random.Random, *effects: float) -> bool:
    """A click: its odds are moved by what the row holds."""
    return draw.random() < 1 / (1 + math.exp(1.0 - sum(effects)))


def _lines(
    path: Path, rows: Iterable[Row], delimiter: str = ",", header: Sequence[str] = ()
) -> list[Path]:
    """A text log; None is an empty field."""
    lines = [delimiter.join(header)] if header else []
    lines += [delimiter.join("" if value is None else str(value) for value in row) for row in rows]
    text = "\n".join(lines) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return [path]


def _log(
    file: str, delimiter: str = ",", header: str = "", seed: str = ""
) -> Callable[[Callable[[random.Random, int], Row]], Callable[[Path], list[Path]]]:
    """A text log of the rows that a function draws; header : names between blanks. seed : names
    the draws; "": the function does.
    """

    def log_of(row: Callable[[random.Random, int], Row]) -> Callable[[Path], list[Path]]:
        @wraps(row)
        def write(folder: Path) -> list[Path]:
            draw = _draw(seed or row.__name__)
            rows = [row(draw, number) for number in range(ROWS)]
            return _lines(folder / file, rows, delimiter, header.split())

        return write

    return log_of


def _stars(draw: random.Random, user: int, item: int) -> int:
    """One to five, by what user and item are."""
    liking = 3 + (item % 5 - 2) * 0.7 + (user % 3 - 1) * 0.5 + draw.gauss(0, 0.6)
    return min(max(round(liking), 1), 5)


def _ratings(name: str) -> list[tuple[int, int, int, int]]:
    """(user, item, stars, seconds since 1970)"""
    draw = _draw(name)
    rows = []
    for number in range(ROWS):
        user, item = draw.randint(1, 60), draw.randint(1, 90)
        rows.append((user, item, _stars(draw, user, item), number))
    return rows


def _iso(second: int, form: str) -> str:
    return datetime.fromtimestamp(START + second, UTC).strftime(form)


def movielens_100k(folder: Path) -> list[Path]:
    """u.data: no header, tabs, seconds of 1997 and 1998."""
    rows = [(u, i, s, 880_000_000 + 911 * n) for u, i, s, n in _ratings("100k")]
    return _lines(folder / "u.data", rows, "\t")


def movielens_20m(folder: Path) -> list[Path]:
    rows = [(u, i, s - 0.5, 1_112_486_027 + 907 * n) for u, i, s, n in _ratings("20m")]
    return _lines(folder / "ratings.csv", rows, header=("userId", "movieId", "rating", "timestamp"))


def movielens_25m(folder: Path) -> list[Path]:
    """Ratings with the film's genres beside them, and milliseconds."""
    genres = ["Action", "Comedy", "Drama", "Horror", "War"]
    rows = []
    for user, item, stars, number in _ratings("25m"):
        shown = "|".join(genres[: 1 + item % 3]) if item % 7 else "(no genres listed)"
        moment = 1_510_577_876_000 + 950_123 * number
        rows.append((user, item, stars, moment, f'"Film, The ({1950 + item % 60})"', shown))
    header = ("userId", "movieId", "rating", "timestamp", "title", "genres")
    return _lines(folder / "ratings.csv", rows, header=header)


@_log("tags.csv", ",", "userId movieId tag timestamp label", seed="tags")
def movielens_tags(draw: random.Random, number: int) -> Row:
    """tags.csv with a label: does the tag fit the film?"""
    words = ["funny", "dark, slow", "classic", 'a "must see"', "sci-fi"]
    item, word = draw.randint(1, 50), draw.choice(words)
    fits = _chance(draw, 2.0 * ((item + len(word)) % 3) - 2.0)
    quoted = '"' + word.replace('"', '""') + '"'
    return (draw.randint(1, 40), item, quoted, START + 3600 * number, int(fits))


@_log("train.txt", "\t")
def criteo(draw: random.Random, _: int) -> Row:
    counts = [None if draw.random() < 0.3 else int(draw.paretovariate(0.8)) for _ in range(13)]
    codes = [f"{draw.randint(0, 9) * 2654435761 % 2**32:08x}" for _ in range(26)]
    codes[3] = "" if draw.random() < 0.1 else codes[3]
    click = _chance(draw, 2.0 * (int(codes[0], 16) % 3) - 2.0)
    return (int(click), *counts, *codes)


@_log(
    "train.gz",
    ",",
    "id click hour C1 banner_pos site_id site_domain site_category app_id app_domain "
    "app_category device_id device_ip device_model device_type device_conn_type C14 C15 "
    "C16 C17 C18 C19 C20 C21",
)
def avazu(draw: random.Random, number: int) -> Row:
    site = draw.randint(0, 9)
    codes = [f"{(draw.randint(0, 9) if i else site) * 40503 % 2**32:08x}" for i in range(9)]
    click = _chance(draw, 1.5 * (site % 3) - 2.0)
    hour = 14102100 + number * 24 // ROWS
    numbers = [draw.choice([320, 50, 300]) + i for i in range(8)]
    key = f"1{number:017d}.5"
    return (key, int(click), hour, 1005, site % 2, *codes, 1, 0, *numbers)


def kdd2012(folder: Path) -> list[Path]:
    """training.txt of the search ads: counts of clicks and impressions, ids, no header."""
    draw = _draw("kdd2012")
    urls = [draw.getrandbits(62) for _ in range(20)]
    rows = []
    for _ in range(ROWS):
        ad, place = draw.randint(20_000_000, 20_000_040), draw.randint(1, 3)
        clicks = int(_chance(draw, 1.0 * (ad % 3) - place))
        ids = (ad, draw.randint(5000, 5030), draw.randint(1, 3), place)
        words = tuple(draw.randint(10_000, 10_050) for _ in range(4))
        url = urls[ad % 20]
        rows.append((clicks, draw.randint(1, 3), url, *ids, *words, draw.randint(0, 90)))
    return _lines(folder / "training.txt", rows, "\t")


@_log("adult.csv", ",", "age workclass fnlwgt education sex capital-gain hours-per-week income")
def adult(draw: random.Random, _: int) -> Row:
    """adult.data with names: texts for the label, ? for what is missing."""
    schools = ["HS-grad", "Bachelors", "Masters", "11th"]
    works = ["Private", "State-gov", "?", "Self-emp-inc"]
    age, school, hours = draw.randint(17, 80), draw.randrange(4), draw.randint(10, 80)
    rich = _chance(draw, (age - 40) / 12, 1.0 * school - 2.0)
    gain = draw.choice([0, 0, 0, 0, 0, 2174, 14084, 99999])
    sex = draw.choice(["Male", "Female"])
    income = ">50K" if rich else "<=50K"
    weight = draw.randint(20_000, 400_000)
    return (age, draw.choice(works), weight, schools[school], sex, gain, hours, income)


def adult_data(folder: Path) -> list[Path]:
    """adult.data as it is shipped: ", " between fields, no header, an empty line at the end."""
    log = adult(folder)[0].read_text(encoding="utf-8").split("\n", 1)[1]
    path = folder / "adult.data"
    path.write_text(log.replace(",", ", ") + "\n", encoding="utf-8")
    return [path]


def adult_test(folder: Path) -> list[Path]:
    """adult.test: a comment ahead, and a point behind the label."""
    lines = adult_data(folder)[0].read_text(encoding="utf-8").splitlines()
    path = folder / "adult.test"
    rows = [f"{line}." if line else "" for line in lines]
    path.write_text("\n".join(["|1x3 Cross validator", *rows, ""]), encoding="utf-8")
    return [path]


@_log("census-income.data")
def census(draw: random.Random, _: int) -> Row:
    """census-income.data: no header, "- 50000." and "50000+."."""
    age, stock = draw.randint(0, 90), draw.choice(["Nonfiler", "Single", "Joint both under 65"])
    rich = _chance(draw, (age - 60) / 15)
    label = "50000+." if rich else "- 50000."
    return (age, draw.choice([0, 4, 40]), stock, draw.randint(0, 52), 94 + age % 2, label)


@_log("BX-Book-Ratings.csv", ";", '"User-ID" "ISBN" "Book-Rating"', seed="books")
def book_crossing(draw: random.Random, _: int) -> Row:
    """BX-Book-Ratings.csv: quotes, semicolons, ISBNs of digits with zeros before them."""
    user, book = draw.randint(276_700, 276_760), draw.randint(1, 60)
    rating = min(max(round(5 + (book % 5) + draw.gauss(0, 1)), 0), 10)
    return (f'"{user}"', f'"{book * 7919:010d}"', f'"{rating}"')


@_log("user_artists.dat", "\t", "userID artistID weight", seed="lastfm")
def last_fm(draw: random.Random, _: int) -> Row:
    """user_artists.dat: how often, as weight, with a heavy tail."""
    user, artist = draw.randint(2, 60), draw.randint(1, 80)
    return (user, artist, int(math.exp(draw.gauss(4 + artist % 4, 1.0))))


@_log("steam-200k.csv")
def steam(draw: random.Random, _: int) -> Row:
    """steam-200k.csv: user, game in quotes, purchase or play, hours, 0; no header."""
    games = ["Dota 2", "Half-Life 2", '"Sid Meier, Civilization"', "Portal"]
    game = draw.randrange(4)
    played = _chance(draw, 1.5 * game - 1.0)
    hours = round(draw.expovariate(0.05), 1) if played else 1.0
    user = draw.randint(151_603_700, 151_603_760)
    return (user, games[game], "play" if played else "purchase", hours, 0)


@_log("reviews.csv", ",", "review_id user_id business_id stars useful funny cool date")
def yelp(draw: random.Random, number: int) -> Row:
    """Reviews as a table: keys of 22 characters, stars, votes, ISO dates."""
    user, shop = draw.randint(1, 50), draw.randint(1, 40)
    stars = float(_stars(draw, user, shop))
    votes = [draw.choice([0, 0, 0, 1, 2, 9]) for _ in range(3)]
    moment = _iso(7919 * number, "%Y-%m-%d %H:%M:%S")
    return (f"r{number:021d}", f"u{user:021d}", f"b{shop:021d}", stars, *votes, moment)


@_log(
    "all.csv",
    ",",
    "index timestamp item_id position click propensity_score user_feature_0 "
    "user_feature_1 user_feature_2 user_feature_3 user-item_affinity_0 "
    "user-item_affinity_1 user-item_affinity_2 user-item_affinity_3",
    seed="bandit",
)
def open_bandit(draw: random.Random, number: int) -> Row:
    """all.csv: an index without a name, a probability, hashed user features, affinities."""
    item, place = draw.randint(0, 79), draw.randint(1, 3)
    click = _chance(draw, 1.0 * (item % 4) - 1.5 * place)
    users = [f"{draw.randint(0, 9) * 40503 % 2**32:032x}" for _ in range(4)]
    affinities = [draw.choice([0.0, 0.0, 1.0, 2.0]) for _ in range(4)]
    moment = _iso(60 * number, "%Y-%m-%d %H:%M:%S.%f+00:00")
    chance = round(draw.uniform(0.01, 0.03), 6)
    return (number, moment, item, place, int(click), chance, *users, *affinities)


@_log(
    "big_matrix.csv",
    ",",
    "user_id video_id play_duration video_duration time date timestamp watch_ratio",
)
def kuairec(draw: random.Random, number: int) -> Row:
    """big_matrix.csv: durations, a time as text, a date of digits, seconds with fractions."""
    user, video = draw.randint(0, 60), draw.randint(0, 90)
    duration = draw.randint(3000, 60_000)
    ratio = max(0.0, (video % 5) / 2 + draw.gauss(0, 0.2))
    second = START + 1013 * number
    text = _iso(1013 * number, "%Y-%m-%d %H:%M:%S.%f")
    moment = f"{second}.{number % 1000:03d}"
    play = int(ratio * duration)
    return (user, video, play, duration, text, text[:10].replace("-", ""), moment, ratio)


@_log("UserBehavior.csv")
def taobao(draw: random.Random, number: int) -> Row:
    """UserBehavior.csv: no header; pv, buy, cart and fav; seconds."""
    item = draw.randint(2_000_000, 2_000_060)
    bought = _chance(draw, 1.5 * (item % 3) - 2.5)
    kind = "buy" if bought else draw.choice(["pv", "pv", "pv", "cart", "fav"])
    user = draw.randint(100, 160)
    return (user, item, 4_000_000 + item % 7, kind, 1_511_544_070 + 61 * number)


@_log("tianchi.csv", ",", "user_id item_id behavior_type user_geohash item_category time")
def tianchi(draw: random.Random, number: int) -> Row:
    """tianchi_mobile: behaviour as 1 to 4, hours as 2014-12-06 02, most places unknown."""
    item = draw.randint(200_000_000, 200_000_060)
    bought = _chance(draw, 1.5 * (item % 3) - 2.5)
    place = f"95q{draw.randint(0, 9)}hs" if draw.random() < 0.3 else None
    kind = 4 if bought else draw.randint(1, 3)
    hour = _iso(3600 * number, "%Y-%m-%d %H")
    return (draw.randint(10_000_000, 10_000_060), item, kind, place, item % 9, hour)


@_log("sample_skeleton.csv", ",", "sample_id click purchase f101 f205 f109_14", seed="aliccp")
def ali_ccp(draw: random.Random, number: int) -> Row:
    """Click and purchase beside each other; lists with weights."""
    item = draw.randint(1, 60)
    click = _chance(draw, 1.5 * (item % 3) - 2.0)
    bought = click and _chance(draw, item % 2 - 1.0)
    shops = ";".join(f"{draw.randint(1, 30)}:{draw.uniform(0.1, 3):.3f}" for _ in range(3))
    return (number, int(click), int(bought), draw.randint(1, 50), item, shops)


@_log("train-queries.csv", ";", "userId categoryId timeframe eventdate items is_click")
def diginetica(draw: random.Random, _: int) -> Row:
    """train-queries.csv: semicolons, NA for users, items shown as a list."""
    category = draw.randint(1, 30)
    items = ",".join(str(draw.randint(500, 560)) for _ in range(4))
    user = draw.randint(1000, 1040) if draw.random() < 0.2 else "NA"
    click = _chance(draw, 1.5 * (category % 3) - 2.0)
    frame = draw.randint(10, 90_000)
    return (user, 200 + category, frame, "2016-05-09", items, int(click))


@_log("events.csv", ",", "timestamp visitorid event itemid transactionid")
def retailrocket(draw: random.Random, number: int) -> Row:
    """events.csv: milliseconds; view, addtocart, transaction; a number for sold ones only."""
    item = draw.randint(300_000, 300_060)
    sold = _chance(draw, 1.5 * (item % 3) - 3.0)
    event = "transaction" if sold else draw.choice(["view", "view", "addtocart"])
    moment = 1_433_221_332_117 + 61_003 * number
    visitor = draw.randint(1000, 1090)
    return (moment, visitor, event, item, draw.randint(1, 9999) if sold else None)


@_log("checkins.txt", "\t")
def gowalla(draw: random.Random, number: int) -> Row:
    """Check-ins: no label but whether the user comes back; times with Z, places as numbers."""
    place = draw.randint(10_000, 10_060)
    again = _chance(draw, 1.5 * (place % 3) - 2.0)
    moment = _iso(-3607 * number, "%Y-%m-%dT%H:%M:%SZ")
    where = (round(30.2 + draw.gauss(0, 0.05), 6), round(-97.7 + draw.gauss(0, 0.05), 6))
    return (draw.randint(0, 50), moment, *where, place, int(again))


@_log("frappe.csv", "\t", "user item cnt daytime weekday homework weather")
def frappe(draw: random.Random, _: int) -> Row:
    """frappe.csv: how often an app was used, and in which context; unknown as a word."""
    app = draw.randint(0, 40)
    used = 1 + int(draw.expovariate(1 / (1 + 4 * (app % 3))))
    context = (draw.choice(["morning", "evening", "night"]), draw.choice(["sunday", "monday"]))
    place = draw.choice(["unknown", "home", "work"])
    weather = draw.choice(["sunny", "rain", "unknown"])
    return (draw.randint(0, 50), app, used, *context, place, weather)


def epinions(folder: Path) -> list[Path]:
    """ratings_data.txt: three numbers and spaces."""
    return _lines(folder / "ratings_data.txt", [row[:3] for row in _ratings("epinions")], " ")


def netflix(folder: Path) -> list[Path]:
    """The prize's ratings as one table: ISO days of 2005."""
    rows = [(i, u, s, f"2005-{1 + n % 12:02d}-{1 + n % 28:02d}") for u, i, s, n in _ratings("nf")]
    header = ("movie_id", "customer_id", "rating", "date")
    return _lines(folder / "ratings.csv", rows, header=header)


@_log("yoochoose-clicks.dat")
def yoochoose(draw: random.Random, number: int) -> Row:
    """yoochoose-clicks.dat with what was bought: no header, ISO times with Z."""
    item = draw.randint(214_536_500, 214_536_560)
    bought = _chance(draw, 1.5 * (item % 3) - 2.0)
    moment = _iso(59 * number, "%Y-%m-%dT%H:%M:%S.123Z")
    return (number // 4, moment, item, draw.choice([0, 0, 1, "S"]), int(bought))


@_log("YearPredictionMSD.txt", seed="songs")
def million_songs(draw: random.Random, _: int) -> Row:
    """YearPredictionMSD: a year, then numbers only; no header."""
    timbre = [round(draw.gauss(10 * i, 20), 5) for i in range(12)]
    year = round(1990 + 0.4 * timbre[0] + draw.gauss(0, 4))
    return (min(max(year, 1922), 2011), *timbre)


def hm(folder: Path) -> list[Path]:
    """Transactions of H&M in Parquet: keys of 64 digits, article numbers with a zero before."""
    draw = _draw("hm")
    rows = []
    for number in range(ROWS):
        article = draw.randint(1, 60)
        online = _chance(draw, 1.5 * (article % 3) - 2.0)
        price = round(0.01 + 0.05 * draw.random(), 6)
        day = datetime.fromtimestamp(START + 3001 * number, UTC).date()
        key = f"{draw.randint(0, 40):064x}"
        rows.append((day, key, f"0{663713 + article:09d}", price, 1 + int(online)))
    names = ["t_dat", "customer_id", "article_id", "price", "sales_channel_id"]
    path = folder / "transactions_train.parquet"
    pl.DataFrame(rows, schema=names, orient="row").write_parquet(path)
    return [path]


@_log(
    "train.csv",
    ",",
    "srch_id date_time prop_id prop_review_score position price_usd click_bool "
    "gross_bookings_usd booking_bool",
)
def expedia(draw: random.Random, number: int) -> Row:
    """Hotel searches: click and booking, gross bookings of booked ones; NULL is missing."""
    hotel, place = draw.randint(1, 60), draw.randint(1, 30)
    booked = _chance(draw, 1.0 * (hotel % 3) - place / 10)
    click = booked or draw.random() < 0.05
    gross = round(draw.uniform(50, 900), 2) if booked else "NULL"
    review = draw.choice([3.5, 4.0, 4.5, "NULL"])
    price = round(math.exp(draw.gauss(4.8, 0.8)), 2)
    moment = _iso(977 * number, "%Y-%m-%d %H:%M:%S")
    outcome = (int(click), gross, int(booked))
    return (number // 8, moment, hotel, review, place, price, *outcome)


@_log("clicks_train.csv", ",", "display_id ad_id clicked uuid timestamp geo_location")
def outbrain(draw: random.Random, number: int) -> Row:
    """clicks_train.csv joined with places: US>CA>807, milliseconds since the log began."""
    ad = draw.randint(42_300, 42_360)
    click = _chance(draw, 1.5 * (ad % 3) - 2.0)
    place = draw.choice(["US>CA>807", "US>NY>501", "GB>E7", "CA>ON"])
    user = f"{draw.randint(0, 40):014x}"
    return (number // 4, ad, int(click), user, 61 * number, place)


def titanic(folder: Path) -> list[Path]:
    """train.csv: quoted names, ages that are missing, cabins that mostly are."""
    draw = _draw("titanic")
    rows = []
    for number in range(1, ROWS + 1):
        sex, rank = draw.choice(["male", "female"]), draw.randint(1, 3)
        survived = _chance(draw, 2.5 * (sex == "female"), -0.7 * rank)
        age = None if draw.random() < 0.2 else draw.randint(1, 70)
        cabin = f"C{draw.randint(1, 99)}" if draw.random() < 0.2 else None
        name = f'"Doe{number}, Mr. John ""Jack"""'
        fare = round(math.exp(draw.gauss(3, 0.9)), 4)
        port = draw.choice(["S", "C", "Q"])
        row = (number, int(survived), rank, name, sex, age, draw.choice([0, 0, 1, 2]))
        rows.append((*row, f"A/5 {draw.randint(10_000, 99_999)}", fare, cabin, port))
    names = ("PassengerId", "Survived", "Pclass", "Name", "Sex", "Age", "SibSp", "Ticket", "Fare")
    return _lines(folder / "train.csv", rows, header=(*names, "Cabin", "Embarked"))


def credit(folder: Path) -> list[Path]:
    """Default of credit cards: numbers, many of them, and codes as numbers."""
    draw = _draw("credit")
    rows = []
    for number in range(1, ROWS + 1):
        limit, late = draw.randint(1, 50) * 10_000, draw.choice([-2, -1, 0, 0, 0, 1, 2])
        default = _chance(draw, 1.2 * late - 0.5, -limit / 400_000)
        bills = [draw.randint(-2000, 200_000) for _ in range(3)]
        person = (draw.randint(1, 2), draw.randint(1, 4), draw.randint(21, 70))
        rows.append((number, limit, *person, late, *bills, int(default)))
    names = ["ID", "LIMIT_BAL", "SEX", "EDUCATION", "AGE", "PAY_0", "BILL_1", "BILL_2", "BILL_3"]
    return _lines(folder / "credit.csv", rows, header=(*names, "default.payment.next.month"))


def bank(folder: Path) -> list[Path]:
    """bank-full.csv: semicolons, quotes, yes and no, the duration of the call."""
    draw = _draw("bank")
    jobs = ["management", "technician", "unknown", "retired"]
    rows = []
    for _ in range(ROWS):
        age, job, balance = draw.randint(18, 80), draw.randrange(4), draw.randint(-2000, 60_000)
        yes = _chance(draw, (age - 50) / 15, 1.0 * (job == 3), -0.5)
        answer = '"yes"' if yes else '"no"'
        loan = draw.choice(['"yes"', '"no"'])
        call = draw.randint(1, 900)
        days = draw.choice([-1, -1, -1, 92, 180])
        rows.append((age, f'"{jobs[job]}"', loan, balance, call, days, answer))
    names = ("age", "job", "housing", "balance", "duration", "pdays", "y")
    return _lines(folder / "bank-full.csv", rows, ";", [f'"{name}"' for name in names])


@_log(
    "covtype.csv",
    ",",
    "Elevation Aspect Slope To_Roads Soil_0 Soil_1 Soil_2 Soil_3 Soil_4 Soil_5 Cover_Type",
)
def covtype(draw: random.Random, _: int) -> Row:
    """covtype.data with names: seven classes, of which the user names one."""
    height, slope = draw.randint(1860, 3850), draw.randint(0, 60)
    kind = 1 if _chance(draw, (height - 2900) / 200) else draw.randint(2, 7)
    soils = [0] * 6
    soils[height // 400 % 6] = 1
    return (height, draw.randint(0, 360), slope, draw.randint(0, 7000), *soils, kind)


@_log("german.data", " ", seed="german")
def german_credit(draw: random.Random, _: int) -> Row:
    """german.data: spaces, codes as A11, the label 1 or 2; no header."""
    account, months = draw.randint(1, 4), draw.randint(4, 60)
    bad = _chance(draw, months / 20 - 1.5, -0.5 * account)
    purpose = f"A4{draw.randint(0, 9)}"
    return (f"A1{account}", months, purpose, draw.randint(300, 15_000), 1 + int(bad))


@_log("heart.csv", ",", "age bps chol thalach target")
def heart(draw: random.Random, _: int) -> Row:
    """Numbers only: a row is a patient."""
    age, pressure = draw.randint(29, 77), draw.randint(94, 200)
    ill = _chance(draw, (age - 54) / 6, (pressure - 130) / 40)
    return (age, pressure, round(draw.gauss(246, 50), 1), draw.randint(71, 202), int(ill))


@_log("sensors.csv", ",", "seen site heat label")
def sensors(draw: random.Random, number: int) -> Row:
    """One per cent of the readings are no numbers, and some times are unknown."""
    heat, site = draw.gauss(60, 10), draw.choice(["north", "south", "east"])
    failed = _chance(draw, (heat - 60) / 6, 1.0 * (site == "north"))
    reading = f"{heat:.2f}" if number % 100 else draw.choice(["error", "--", "12 kW"])
    moment = _iso(907 * number, "%d.%m.%Y %H:%M:%S") if number % 90 else "unknown"
    return (moment, site, reading, int(failed))


def vectors(folder: Path) -> list[Path]:
    """Embeddings beside names: lists of floats of one length in Parquet."""
    draw = _draw("vectors")
    rows = []
    for _ in range(ROWS):
        vector = [round(draw.gauss(0, 0.3), 4) for _ in range(6)]
        click = _chance(draw, 6 * vector[0], -6 * vector[3])
        rows.append((draw.randint(0, 40), vector, bool(click)))
    path = folder / "vectors.parquet"
    schema = {"user_id": pl.Int64, "embedding": pl.List(pl.Float32), "clicked": pl.Boolean}
    pl.DataFrame(rows, schema=schema, orient="row").write_parquet(path)
    return [path]


@_log(
    "impressions.csv",
    ",",
    "campaign cost clicks_30d click conversion revenue dwell_time",
    seed="funnel",
)
def ad_funnel(draw: random.Random, _: int) -> Row:
    """What comes after a click stands beside it: conversion, revenue, the time spent."""
    campaign, price = draw.randint(1, 30), round(draw.uniform(0.1, 3.0), 2)
    click = _chance(draw, 1.5 * (campaign % 3) - 2.0)
    sold = click and _chance(draw, 0.0)
    revenue = round(draw.uniform(5, 90), 2) if sold else 0
    spent = draw.randint(1, 300) if click or draw.random() < 0.1 else 0
    past = draw.randint(0, 30)
    return (campaign, price, past, int(click), int(sold), revenue, spent)


def int_codes(folder: Path) -> list[Path]:
    """Codes with gaps as pandas keeps them: floats with NaN, in Parquet."""
    draw = _draw("codes")
    rows = []
    for _ in range(ROWS):
        shop = draw.randint(1, 40)
        click = _chance(draw, 1.5 * (shop % 3) - 2.0)
        brand = float(draw.randint(1, 20)) if draw.random() < 0.8 else None
        rows.append((float(shop), brand, round(draw.uniform(1, 90), 2), int(click)))
    names = ["shop_id", "brand_id", "price", "click"]
    path = folder / "offers.parquet"
    pl.DataFrame(rows, schema=names, orient="row").write_parquet(path)
    return [path]


LOGS: Mapping[str, Callable[[Path], list[Path]]] = {
    each.__name__: each
    for each in (
        *(movielens_100k, movielens_20m, movielens_25m, movielens_tags, criteo, avazu, kdd2012),
        *(
            adult,
            adult_data,
            adult_test,
            census,
            book_crossing,
            last_fm,
            steam,
            yelp,
            open_bandit,
            kuairec,
            taobao,
        ),
        *(tianchi, ali_ccp, diginetica, retailrocket, gowalla, frappe, epinions, netflix),
        *(yoochoose, million_songs, hm, expedia, outbrain, titanic, credit, bank, covtype),
        *(german_credit, heart, sensors, vectors, ad_funnel, int_codes),
    )
}
