"""Does a user like a movie, given those liked before? Histories for target attention (DIN).

    python examples/histories_of_ratings.py ml-1m/ratings.dat out    # out/log.tsv, out/din.toml
    neocpu train out/din.toml

The log: https://grouplens.org/datasets/movielens/1m, lines "UserID::MovieID::Rating::Timestamp".
Ratings in the order of their times become samples: the movie, whether its user gives it 4 stars or
more, and the last movies to which that user did before. History and candidate look up one table,
whose pooling is "none": every movie of a history gives its own row, and `model.attention` weighs
them by their likeness to the candidate.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import _needs  # noqa: F401, what to install

LIKED = 4  # stars
LONGEST = 50  # movies of a history
MODEL = """\
[data]
train = "log.tsv"
format = "table"
rows_by = "vocabulary"
min_count = 1
split = [0.9, 0.0, 0.1]  # the last ratings are the test

[data.schema]
delimiter = "\\t"
columns = ["liked", "movie", "history"]
[data.schema.label]
column = "liked"
[[data.schema.category]]
columns = ["movie"]
kind = "int"
[[data.schema.category]]
columns = ["history"]
kind = "int"
separator = "|"

[model]
embedding_dim = 16
bottom = [16]
top = [64, 1]
[model.attention]
history = { target = "movie", hidden = [36] }

[tables.movies]
rows = 4_000
features = ["movie", "history"]
same_codes = true
pooling = "none"

[optimizer.sparse]
name = "exact_rowwise_adagrad"
learning_rate = 0.05
[optimizer.dense]
name = "adam"
learning_rate = 0.002

[training]
batch_size = 256
epochs = 2
"""


def samples_of(ratings: Path) -> Iterator[tuple[int, str, list[str]]]:
    """(liked, movie, movies that its user liked before) of each rating, in the order of times."""
    rated = []
    with ratings.open() as lines:
        for line in lines:
            user, movie, stars, time = line.strip().split("::")
            rated.append((int(time), user, movie, int(stars)))
    liked_by = defaultdict[str, list[str]](list)
    for _, user, movie, stars in sorted(rated):
        yield int(stars >= LIKED), movie, liked_by[user][-LONGEST:]
        if stars >= LIKED:
            liked_by[user].append(movie)


def main(ratings: Path, folder: Path) -> Path:
    """Write the log and a config for it into a folder; returns the config's path."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    with (folder / "log.tsv").open("w") as log:
        log.write("liked\tmovie\thistory\n")
        for liked, movie, history in samples_of(ratings):
            log.write(f"{liked}\t{movie}\t{'|'.join(history)}\n")
            count += 1
    config = folder / "din.toml"
    config.write_text(MODEL)
    print(f"{count:,} samples in {folder / 'log.tsv'}; now neocpu train {config}")
    return config


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ratings", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    main(arguments.ratings, arguments.folder)
