"""Does a user like a movie, given those liked before? Histories for target attention (DIN).

    python examples/histories_of_ratings.py ml-1m/ratings.dat clicks.csv
    neocpu train din --set data.train=clicks.csv

The log: https://grouplens.org/datasets/movielens/1m, lines "UserID::MovieID::Rating::Timestamp".
Ratings in the order of their times become samples: the user, the movie, whether it gets 4 stars or
more, and the last movies to which that user gave as many before. History and candidate look up one
table, whose pooling is "none": every movie of a history gives its own row, and `model.attention`
weighs them by their likeness to the candidate.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import _needs  # noqa: F401, what to install

LIKED = 4  # stars
LONGEST = 50  # movies of a history


class Sample(NamedTuple):
    """A rating: is it LIKED, by whom, of what, and what that user liked before."""

    click: int
    user: str
    movie: str
    history: list[str]


def samples_of(ratings: Path) -> Iterator[Sample]:
    """The ratings of a file, in the order of their times."""
    rated = []
    with ratings.open() as lines:
        for line in lines:
            user, movie, stars, time = line.strip().split("::")
            rated.append((int(time), user, movie, int(stars)))
    liked = defaultdict[str, list[str]](list)
    for _, user, movie, stars in sorted(rated):
        click = int(stars >= LIKED)
        yield Sample(click, user, movie, liked[user][-LONGEST:])
        if click:
            liked[user].append(movie)


def main(ratings: Path, log: Path) -> None:
    """Write the log that the preset `din` reads."""
    count = 0
    with log.open("w") as file:
        file.write(",".join(Sample._fields) + "\n")
        for click, user, movie, history in samples_of(ratings):
            file.write(f"{click},{user},{movie},{'|'.join(history)}\n")
            count += 1
    print(f"{count:,} samples in {log}; now neocpu train din --set data.train={log}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ratings", type=Path)
    parser.add_argument("log", type=Path)
    arguments = parser.parse_args()
    main(arguments.ratings, arguments.log)
