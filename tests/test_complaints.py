"""Is what does not serve said, once, and nothing else?"""

from neocpu.ingest.dataset_layout import FeatureColumn
from neocpu.train.config import config as configs
from neocpu.train.watch.complaints import TrainData, ValidWatch, complaints, warn_of_leaves

TEXT = """
[tables]
a.rows = 100
b.rows = 1000
"""


def column(name, weighted=False):
    return FeatureColumn(name, "uint64", 1, weighted, "text")


def said(*overrides, rows=100_000, steps=3000, values=(10, 100), extra=(), weighted=False):
    features = {name: column(name, weighted and name == "a") for name in ("a", "b", *extra)}
    data = TrainData(rows, features, dict(zip("ab", values)))
    return list(complaints(configs.loads(TEXT, overrides=list(overrides)), data, steps))


def test_a_config_that_serves_is_not_talked_about():
    assert said("training.batch_size=32") == []


def test_each_complaint_is_one_line_with_a_remedy():
    (line,) = said("training.batch_size=2048", steps=49)
    assert line.startswith("only 49 steps in all, of 2,048 samples each")
    assert "training.batch_size = 32 suits 100,000 samples" in line
    assert said("training.batch_size=32", steps=49, rows=1500) == []  # nothing better to say
    (line,) = said("optimizer.dense.learning_rate=0.0", "training.batch_size=32")
    assert line == "optimizer.dense.learning_rate is 0: dense parameters stay as they begin"
    (line,) = said("optimizer.shampoo={every=9, roots='eigh'}", "training.batch_size=32")
    assert "the digest may be another one on other machines" in line
    (line,) = said("training.batch_size=32", extra="cd")
    assert line.endswith("does not see: c, d")
    (line,) = said("training.batch_size=32", weighted=True)
    assert "weights of a, which are ignored; tables.a.weighted = true" in line
    (line,) = said("training.batch_size=32", values=(100, 1000))
    assert "a 100 in 100 (63 %), b 1,000 in 1,000 (63 %)" in line or "b 1,000" in line
    vocabulary = ("training.batch_size=32", 'data.rows_by="vocabulary"')
    assert said(*vocabulary, values=(100, 1000)) == []


def test_a_valid_loss_that_turns_is_said_once():
    lines = []
    watch = ValidWatch(lines.append)
    losses = [0.46, 0.48, 0.45, 0.4505, 0.47, 0.451, 0.48, 0.5, 0.47, 0.6]  # noise, then three
    for step, loss in enumerate(losses):
        watch({"step": step, "split": "train", "logloss": 0.9 + step})
        watch({"step": step, "split": "valid", "logloss": loss})
    (line,) = lines
    assert line.startswith("valid logloss 0.4700 is worse than 0.4500 at step 2: more training")


def test_ranks_or_threads_beyond_the_leaves_are_told_of():
    told = []
    for settings, ranks in (
        ((), 4),
        ((), 5),
        (("training.sync=off", "training.asynchronous.servers=3"), 5),
        (("training.sync=off", "training.asynchronous.threads=3"), 2),
    ):
        warn_of_leaves(
            configs.loads(TEXT, overrides=["training.leaves=4", *settings]), ranks, told.append
        )
    assert [line.split(":")[1] for line in told] == [
        " 5 ranks but training.leaves = 4",
        " 6 threads train but training.leaves = 4",
    ]
