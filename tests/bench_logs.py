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


def movielens_tags(folder: Path) -> list[Path]:
    """tags.csv with a label: does the tag fit the film?"""
    draw = _draw("tags")
    words = ["funny", "dark, slow", "classic", 'a "must see"', "sci-fi"]
    rows = []
    for number in range(ROWS):
        item, word = draw.randint(1, 50), draw.choice(words)
        fits = _chance(draw, 2.0 * ((item + len(word)) % 3) - 2.0)
        quoted = '"' + word.replace('"', '""') + '"'
        rows.append((draw.randint(1, 40), item, quoted, START + 3600 * number, int(fits)))
    header = ("userId", "movieId", "tag", "timestamp", "label")
    return _lines(folder / "tags.csv", rows, header=header)


def criteo(folder: Path) -> list[Path]:
    draw = _draw("criteo")
    rows = []
    for _ in range(ROWS):
        counts = [None if draw.random() < 0.3 else int(draw.paretovariate(0.8)) for _ in range(13)]
        codes = [f"{draw.randint(0, 9) * 2654435761 % 2**32:08x}" for _ in range(26)]
        codes[3] = "" if draw.random() < 0.1 else codes[3]
        click = _chance(draw, 2.0 * (int(codes[0], 16) % 3) - 2.0)
        rows.append((int(click), *counts, *codes))
    return _lines(folder / "train.txt", rows, "\t")


def avazu(folder: Path) -> list[Path]:
    draw = _draw("avazu")
    names = ["site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category"]
    names += ["device_id", "device_ip", "device_model", "device_type", "device_conn_type"]
    header = ["id", "click", "hour", "C1", "banner_pos", *names]
    header += [f"C{number}" for number in range(14, 22)]
    rows = []
    for number in range(ROWS):
        site = draw.randint(0, 9)
        codes = [f"{(draw.randint(0, 9) if i else site) * 40503 % 2**32:08x}" for i in range(9)]
        click = _chance(draw, 1.5 * (site % 3) - 2.0)
        hour = 14102100 + number * 24 // ROWS
        numbers = [draw.choice([320, 50, 300]) + i for i in range(8)]
        key = f"1{number:017d}.5"
        rows.append((key, int(click), hour, 1005, site % 2, *codes, 1, 0, *numbers))
    return _lines(folder / "train.gz", rows, header=header)


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


def adult(folder: Path) -> list[Path]:
    """adult.data with names: texts for the label, ? for what is missing."""
    draw = _draw("adult")
    schools = ["HS-grad", "Bachelors", "Masters", "11th"]
    works = ["Private", "State-gov", "?", "Self-emp-inc"]
    rows = []
    for _ in range(ROWS):
        age, school, hours = draw.randint(17, 80), draw.randrange(4), draw.randint(10, 80)
        rich = _chance(draw, (age - 40) / 12, 1.0 * school - 2.0)
        gain = draw.choice([0, 0, 0, 0, 0, 2174, 14084, 99999])
        sex = draw.choice(["Male", "Female"])
        income = ">50K" if rich else "<=50K"
        weight = draw.randint(20_000, 400_000)
        rows.append((age, draw.choice(works), weight, schools[school], sex, gain, hours, income))
    header = ("age", "workclass", "fnlwgt", "education", "sex", "capital-gain", "hours-per-week")
    return _lines(folder / "adult.csv", rows, header=(*header, "income"))


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


def census(folder: Path) -> list[Path]:
    """census-income.data: no header, "- 50000." and "50000+."."""
    draw = _draw("census")
    rows = []
    for _ in range(ROWS):
        age, stock = draw.randint(0, 90), draw.choice(["Nonfiler", "Single", "Joint both under 65"])
        rich = _chance(draw, (age - 60) / 15)
        label = "50000+." if rich else "- 50000."
        rows.append((age, draw.choice([0, 4, 40]), stock, draw.randint(0, 52), 94 + age % 2, label))
    return _lines(folder / "census-income.data", rows)


def book_crossing(folder: Path) -> list[Path]:
    """BX-Book-Ratings.csv: quotes, semicolons, ISBNs of digits with zeros before them."""
    draw = _draw("books")
    rows = []
    for _ in range(ROWS):
        user, book = draw.randint(276_700, 276_760), draw.randint(1, 60)
        rating = min(max(round(5 + (book % 5) + draw.gauss(0, 1)), 0), 10)
        rows.append((f'"{user}"', f'"{book * 7919:010d}"', f'"{rating}"'))
    header = ('"User-ID"', '"ISBN"', '"Book-Rating"')
    return _lines(folder / "BX-Book-Ratings.csv", rows, ";", header)


def last_fm(folder: Path) -> list[Path]:
    """user_artists.dat: how often, as weight, with a heavy tail."""
    draw = _draw("lastfm")
    rows = []
    for _ in range(ROWS):
        user, artist = draw.randint(2, 60), draw.randint(1, 80)
        rows.append((user, artist, int(math.exp(draw.gauss(4 + artist % 4, 1.0)))))
    return _lines(folder / "user_artists.dat", rows, "\t", ("userID", "artistID", "weight"))


def steam(folder: Path) -> list[Path]:
    """steam-200k.csv: user, game in quotes, purchase or play, hours, 0; no header."""
    draw = _draw("steam")
    games = ["Dota 2", "Half-Life 2", '"Sid Meier, Civilization"', "Portal"]
    rows = []
    for _ in range(ROWS):
        game = draw.randrange(4)
        played = _chance(draw, 1.5 * game - 1.0)
        hours = round(draw.expovariate(0.05), 1) if played else 1.0
        user = draw.randint(151_603_700, 151_603_760)
        rows.append((user, games[game], "play" if played else "purchase", hours, 0))
    return _lines(folder / "steam-200k.csv", rows)


def yelp(folder: Path) -> list[Path]:
    """Reviews as a table: keys of 22 characters, stars, votes, ISO dates."""
    draw = _draw("yelp")
    rows = []
    for number in range(ROWS):
        user, shop = draw.randint(1, 50), draw.randint(1, 40)
        stars = float(_stars(draw, user, shop))
        votes = [draw.choice([0, 0, 0, 1, 2, 9]) for _ in range(3)]
        moment = _iso(7919 * number, "%Y-%m-%d %H:%M:%S")
        rows.append((f"r{number:021d}", f"u{user:021d}", f"b{shop:021d}", stars, *votes, moment))
    names = ("review_id", "user_id", "business_id", "stars", "useful", "funny", "cool", "date")
    return _lines(folder / "reviews.csv", rows, header=names)


def open_bandit(folder: Path) -> list[Path]:
    """all.csv: an index without a name, a probability, hashed user features, affinities."""
    draw = _draw("bandit")
    rows = []
    for number in range(ROWS):
        item, place = draw.randint(0, 79), draw.randint(1, 3)
        click = _chance(draw, 1.0 * (item % 4) - 1.5 * place)
        users = [f"{draw.randint(0, 9) * 40503 % 2**32:032x}" for _ in range(4)]
        affinities = [draw.choice([0.0, 0.0, 1.0, 2.0]) for _ in range(4)]
        moment = _iso(60 * number, "%Y-%m-%d %H:%M:%S.%f+00:00")
        chance = round(draw.uniform(0.01, 0.03), 6)
        rows.append((number, moment, item, place, int(click), chance, *users, *affinities))
    names = ["index", "timestamp", "item_id", "position", "click", "propensity_score"]
    names += [f"user_feature_{number}" for number in range(4)]
    names += [f"user-item_affinity_{number}" for number in range(4)]
    return _lines(folder / "all.csv", rows, header=names)


def kuairec(folder: Path) -> list[Path]:
    """big_matrix.csv: durations, a time as text, a date of digits, seconds with fractions."""
    draw = _draw("kuairec")
    rows = []
    for number in range(ROWS):
        user, video = draw.randint(0, 60), draw.randint(0, 90)
        duration = draw.randint(3000, 60_000)
        ratio = max(0.0, (video % 5) / 2 + draw.gauss(0, 0.2))
        second = START + 1013 * number
        text = _iso(1013 * number, "%Y-%m-%d %H:%M:%S.%f")
        moment = f"{second}.{number % 1000:03d}"
        play = int(ratio * duration)
        rows.append((user, video, play, duration, text, text[:10].replace("-", ""), moment, ratio))
    names = ("user_id", "video_id", "play_duration", "video_duration", "time", "date")
    return _lines(folder / "big_matrix.csv", rows, header=(*names, "timestamp", "watch_ratio"))


def taobao(folder: Path) -> list[Path]:
    """UserBehavior.csv: no header; pv, buy, cart and fav; seconds."""
    draw = _draw("taobao")
    rows = []
    for number in range(ROWS):
        item = draw.randint(2_000_000, 2_000_060)
        bought = _chance(draw, 1.5 * (item % 3) - 2.5)
        kind = "buy" if bought else draw.choice(["pv", "pv", "pv", "cart", "fav"])
        user = draw.randint(100, 160)
        rows.append((user, item, 4_000_000 + item % 7, kind, 1_511_544_070 + 61 * number))
    return _lines(folder / "UserBehavior.csv", rows)


def tianchi(folder: Path) -> list[Path]:
    """tianchi_mobile: behaviour as 1 to 4, hours as 2014-12-06 02, most places unknown."""
    draw = _draw("tianchi")
    rows = []
    for number in range(ROWS):
        item = draw.randint(200_000_000, 200_000_060)
        bought = _chance(draw, 1.5 * (item % 3) - 2.5)
        place = f"95q{draw.randint(0, 9)}hs" if draw.random() < 0.3 else None
        kind = 4 if bought else draw.randint(1, 3)
        hour = _iso(3600 * number, "%Y-%m-%d %H")
        rows.append((draw.randint(10_000_000, 10_000_060), item, kind, place, item % 9, hour))
    names = ("user_id", "item_id", "behavior_type", "user_geohash", "item_category", "time")
    return _lines(folder / "tianchi.csv", rows, header=names)


def ali_ccp(folder: Path) -> list[Path]:
    """Click and purchase beside each other; lists with weights."""
    draw = _draw("aliccp")
    rows = []
    for number in range(ROWS):
        item = draw.randint(1, 60)
        click = _chance(draw, 1.5 * (item % 3) - 2.0)
        bought = click and _chance(draw, item % 2 - 1.0)
        shops = ";".join(f"{draw.randint(1, 30)}:{draw.uniform(0.1, 3):.3f}" for _ in range(3))
        rows.append((number, int(click), int(bought), draw.randint(1, 50), item, shops))
    names = ("sample_id", "click", "purchase", "f101", "f205", "f109_14")
    return _lines(folder / "sample_skeleton.csv", rows, header=names)


def diginetica(folder: Path) -> list[Path]:
    """train-queries.csv: semicolons, NA for users, items shown as a list."""
    draw = _draw("diginetica")
    rows = []
    for _ in range(ROWS):
        category = draw.randint(1, 30)
        items = ",".join(str(draw.randint(500, 560)) for _ in range(4))
        user = draw.randint(1000, 1040) if draw.random() < 0.2 else "NA"
        click = _chance(draw, 1.5 * (category % 3) - 2.0)
        frame = draw.randint(10, 90_000)
        rows.append((user, 200 + category, frame, "2016-05-09", items, int(click)))
    names = ("userId", "categoryId", "timeframe", "eventdate", "items", "is_click")
    return _lines(folder / "train-queries.csv", rows, ";", names)


def retailrocket(folder: Path) -> list[Path]:
    """events.csv: milliseconds; view, addtocart, transaction; a number for sold ones only."""
    draw = _draw("retailrocket")
    rows = []
    for number in range(ROWS):
        item = draw.randint(300_000, 300_060)
        sold = _chance(draw, 1.5 * (item % 3) - 3.0)
        event = "transaction" if sold else draw.choice(["view", "view", "addtocart"])
        moment = 1_433_221_332_117 + 61_003 * number
        visitor = draw.randint(1000, 1090)
        rows.append((moment, visitor, event, item, draw.randint(1, 9999) if sold else None))
    names = ("timestamp", "visitorid", "event", "itemid", "transactionid")
    return _lines(folder / "events.csv", rows, header=names)


def gowalla(folder: Path) -> list[Path]:
    """Check-ins: no label but whether the user comes back; times with Z, places as numbers."""
    draw = _draw("gowalla")
    rows = []
    for number in range(ROWS):
        place = draw.randint(10_000, 10_060)
        again = _chance(draw, 1.5 * (place % 3) - 2.0)
        moment = _iso(-3607 * number, "%Y-%m-%dT%H:%M:%SZ")
        where = (round(30.2 + draw.gauss(0, 0.05), 6), round(-97.7 + draw.gauss(0, 0.05), 6))
        rows.append((draw.randint(0, 50), moment, *where, place, int(again)))
    return _lines(folder / "checkins.txt", rows, "\t")


def frappe(folder: Path) -> list[Path]:
    """frappe.csv: how often an app was used, and in which context; unknown as a word."""
    draw = _draw("frappe")
    rows = []
    for _ in range(ROWS):
        app = draw.randint(0, 40)
        used = 1 + int(draw.expovariate(1 / (1 + 4 * (app % 3))))
        context = (draw.choice(["morning", "evening", "night"]), draw.choice(["sunday", "monday"]))
        place = draw.choice(["unknown", "home", "work"])
        weather = draw.choice(["sunny", "rain", "unknown"])
        rows.append((draw.randint(0, 50), app, used, *context, place, weather))
    names = ("user", "item", "cnt", "daytime", "weekday", "homework", "weather")
    return _lines(folder / "frappe.csv", rows, "\t", names)


def epinions(folder: Path) -> list[Path]:
    """ratings_data.txt: three numbers and spaces."""
    return _lines(folder / "ratings_data.txt", [row[:3] for row in _ratings("epinions")], " ")


def netflix(folder: Path) -> list[Path]:
    """The prize's ratings as one table: ISO days of 2005."""
    rows = [(i, u, s, f"2005-{1 + n % 12:02d}-{1 + n % 28:02d}") for u, i, s, n in _ratings("nf")]
    header = ("movie_id", "customer_id", "rating", "date")
    return _lines(folder / "ratings.csv", rows, header=header)


def yoochoose(folder: Path) -> list[Path]:
    """yoochoose-clicks.dat with what was bought: no header, ISO times with Z."""
    draw = _draw("yoochoose")
    rows = []
    for number in range(ROWS):
        item = draw.randint(214_536_500, 214_536_560)
        bought = _chance(draw, 1.5 * (item % 3) - 2.0)
        moment = _iso(59 * number, "%Y-%m-%dT%H:%M:%S.123Z")
        rows.append((number // 4, moment, item, draw.choice([0, 0, 1, "S"]), int(bought)))
    return _lines(folder / "yoochoose-clicks.dat", rows)


def million_songs(folder: Path) -> list[Path]:
    """YearPredictionMSD: a year, then numbers only; no header."""
    draw = _draw("songs")
    rows = []
    for _ in range(ROWS):
        timbre = [round(draw.gauss(10 * i, 20), 5) for i in range(12)]
        year = round(1990 + 0.4 * timbre[0] + draw.gauss(0, 4))
        rows.append((min(max(year, 1922), 2011), *timbre))
    return _lines(folder / "YearPredictionMSD.txt", rows)


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


def expedia(folder: Path) -> list[Path]:
    """Hotel searches: click and booking, gross bookings of booked ones; NULL is missing."""
    draw = _draw("expedia")
    rows = []
    for number in range(ROWS):
        hotel, place = draw.randint(1, 60), draw.randint(1, 30)
        booked = _chance(draw, 1.0 * (hotel % 3) - place / 10)
        click = booked or draw.random() < 0.05
        gross = round(draw.uniform(50, 900), 2) if booked else "NULL"
        review = draw.choice([3.5, 4.0, 4.5, "NULL"])
        price = round(math.exp(draw.gauss(4.8, 0.8)), 2)
        moment = _iso(977 * number, "%Y-%m-%d %H:%M:%S")
        outcome = (int(click), gross, int(booked))
        rows.append((number // 8, moment, hotel, review, place, price, *outcome))
    names = ["srch_id", "date_time", "prop_id", "prop_review_score", "position", "price_usd"]
    names += ["click_bool", "gross_bookings_usd", "booking_bool"]
    return _lines(folder / "train.csv", rows, header=names)


def outbrain(folder: Path) -> list[Path]:
    """clicks_train.csv joined with places: US>CA>807, milliseconds since the log began."""
    draw = _draw("outbrain")
    rows = []
    for number in range(ROWS):
        ad = draw.randint(42_300, 42_360)
        click = _chance(draw, 1.5 * (ad % 3) - 2.0)
        place = draw.choice(["US>CA>807", "US>NY>501", "GB>E7", "CA>ON"])
        user = f"{draw.randint(0, 40):014x}"
        rows.append((number // 4, ad, int(click), user, 61 * number, place))
    names = ("display_id", "ad_id", "clicked", "uuid", "timestamp", "geo_location")
    return _lines(folder / "clicks_train.csv", rows, header=names)


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


def covtype(folder: Path) -> list[Path]:
    """covtype.data with names: seven classes, of which the user names one."""
    draw = _draw("covtype")
    rows = []
    for _ in range(ROWS):
        height, slope = draw.randint(1860, 3850), draw.randint(0, 60)
        kind = 1 if _chance(draw, (height - 2900) / 200) else draw.randint(2, 7)
        soils = [0] * 6
        soils[height // 400 % 6] = 1
        rows.append((height, draw.randint(0, 360), slope, draw.randint(0, 7000), *soils, kind))
    names = ["Elevation", "Aspect", "Slope", "To_Roads", *(f"Soil_{i}" for i in range(6))]
    return _lines(folder / "covtype.csv", rows, header=(*names, "Cover_Type"))


def german_credit(folder: Path) -> list[Path]:
    """german.data: spaces, codes as A11, the label 1 or 2; no header."""
    draw = _draw("german")
    rows = []
    for _ in range(ROWS):
        account, months = draw.randint(1, 4), draw.randint(4, 60)
        bad = _chance(draw, months / 20 - 1.5, -0.5 * account)
        purpose = f"A4{draw.randint(0, 9)}"
        rows.append((f"A1{account}", months, purpose, draw.randint(300, 15_000), 1 + int(bad)))
    return _lines(folder / "german.data", rows, " ")


def heart(folder: Path) -> list[Path]:
    """Numbers only: a row is a patient."""
    draw = _draw("heart")
    rows = []
    for _ in range(ROWS):
        age, pressure = draw.randint(29, 77), draw.randint(94, 200)
        ill = _chance(draw, (age - 54) / 6, (pressure - 130) / 40)
        rows.append((age, pressure, round(draw.gauss(246, 50), 1), draw.randint(71, 202), int(ill)))
    return _lines(folder / "heart.csv", rows, header=("age", "bps", "chol", "thalach", "target"))


def sensors(folder: Path) -> list[Path]:
    """One per cent of the readings are no numbers, and some times are unknown."""
    draw = _draw("sensors")
    rows = []
    for number in range(ROWS):
        heat, site = draw.gauss(60, 10), draw.choice(["north", "south", "east"])
        failed = _chance(draw, (heat - 60) / 6, 1.0 * (site == "north"))
        reading = f"{heat:.2f}" if number % 100 else draw.choice(["error", "--", "12 kW"])
        moment = _iso(907 * number, "%d.%m.%Y %H:%M:%S") if number % 90 else "unknown"
        rows.append((moment, site, reading, int(failed)))
    return _lines(folder / "sensors.csv", rows, header=("seen", "site", "heat", "label"))


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


def ad_funnel(folder: Path) -> list[Path]:
    """What comes after a click stands beside it: conversion, revenue, the time spent."""
    draw = _draw("funnel")
    rows = []
    for _ in range(ROWS):
        campaign, price = draw.randint(1, 30), round(draw.uniform(0.1, 3.0), 2)
        click = _chance(draw, 1.5 * (campaign % 3) - 2.0)
        sold = click and _chance(draw, 0.0)
        revenue = round(draw.uniform(5, 90), 2) if sold else 0
        spent = draw.randint(1, 300) if click or draw.random() < 0.1 else 0
        past = draw.randint(0, 30)
        rows.append((campaign, price, past, int(click), int(sold), revenue, spent))
    names = ("campaign", "cost", "clicks_30d", "click", "conversion", "revenue", "dwell_time")
    return _lines(folder / "impressions.csv", rows, header=names)


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
