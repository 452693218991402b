"""Where is a log of ratings, with few rows of many users, to measure on? A drawn one.

    python -m benchmarks.ratings ratings.csv --rows 20000 --seed 1

It has the shape of MovieLens 100K: 943 users, 1,682 items, activity and popularity with long tails,
and clicks for ratings of at least 4 stars. A rating is the sum of effects of the user, of the item,
and of the tastes of one in the other, with standard deviations near those that were fitted to such
ratings (Koren et al. 2009: biases explain most of what can be explained).
"""

import argparse
from pathlib import Path

import numpy as np

USERS = 943
ITEMS = 1682
GENRES = 18
TASTES = 8
MEAN = 3.53  # stars
USER_EFFECT = 0.44
ITEM_EFFECT = 0.6
TASTE_EFFECT = 0.35
NOISE = 0.8
HEADER = "user_id,item_id,time,age,gender,occupation,genres,clicked"


def write_ratings(path: Path, rows: int, seed: int) -> Path:
    """Write a CSV of so many ratings in the order of time; returns its path."""
    random = np.random.default_rng(seed)
    activity = random.lognormal(0.0, 1.0, USERS)
    popularity = random.lognormal(0.0, 1.4, ITEMS)
    user = random.choice(USERS, rows, p=activity / activity.sum())
    item = random.choice(ITEMS, rows, p=popularity / popularity.sum())
    genres = random.random((ITEMS, GENRES)) < 0.1
    genres[np.arange(ITEMS), random.integers(0, GENRES, ITEMS)] = True
    # popular items are liked better
    liked = 0.6 * np.log(popularity) / 1.4 + 0.8 * random.normal(size=ITEMS)
    of_genre = random.normal(size=(GENRES, TASTES))
    taste = random.normal(size=(USERS, TASTES))
    flavour = random.normal(size=(ITEMS, TASTES)) + genres @ of_genre
    flavour /= np.linalg.norm(flavour, axis=1, keepdims=True)
    stars = (
        MEAN
        + USER_EFFECT * random.normal(size=USERS)[user]
        + ITEM_EFFECT * liked[item]
        + TASTE_EFFECT * np.einsum("nd,nd->n", taste[user], flavour[item])
        + NOISE * random.normal(size=rows)
    )
    age = random.integers(12, 70, USERS)
    gender = np.where(random.random(USERS) < 0.71, "M", "F")
    occupation = random.integers(0, 21, USERS)
    names = ["|".join(f"g{genre}" for genre in np.flatnonzero(each)) for each in genres]
    lines = [HEADER]
    seconds = 874_724_710 + np.sort(random.integers(0, 18_000_000, rows))
    time = np.datetime_as_string(seconds.astype("datetime64[s]"))
    for n in range(rows):
        u = user[n]
        columns = (u + 1, item[n] + 1, time[n], age[u], gender[u], f"job{occupation[u]}")
        lines.append(f"{','.join(map(str, columns))},{names[item[n]]},{int(stars[n] >= 3.5)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def main() -> None:
    """Parse the command line, write the log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    write_ratings(options.path, options.rows, options.seed)


if __name__ == "__main__":
    main()
