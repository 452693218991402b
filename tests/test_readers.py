"""Do readers deliver the batches of the direct loader, bit for bit, whatever happens to them?"""

import gzip
import io
import itertools
import os
import re
import signal
import socket
import threading
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import small_run
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.cli.plan import plan
from neocpu.core.errors import ConfigError, DataError, Stopped
from neocpu.ingest.dataset.convert import convert
from neocpu.ingest.dataset.convert_options import ConvertOptions
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.raw import FileIndex, RawLog, index_of
from neocpu.ingest.formats import readers, sources
from neocpu.ingest.formats.table import table_schema
from neocpu.ingest.loader import BatchShare, Loader, Needs, Reading
from neocpu.ingest.readers import coming as coming_files
from neocpu.ingest.readers import frames, reader
from neocpu.ingest.readers.coming import ComingDataset
from neocpu.ingest.readers.queue import BatchQueue
from neocpu.ingest.settings import ReadersConfig
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.before import raw_train
from neocpu.train.before import reader_rate as rates
from neocpu.train.run import reading
from neocpu.train.run.trainer import Trainer
from neocpu.train.step.schedule import BatchSchedule

ROWS = 9_001  # three blocks of an epoch's order
SCHEMA = {
    "label": {"column": "y", "kind": "number"},
    "dense": [{"columns": ["x"], "kind": "float", "transform": "none"}],
    "category": [
        {"columns": ["user"], "kind": "int"},
        {"columns": ["tags"], "separator": "|", "weight_separator": ":"},
    ],
}
TABLES = (
    TableSpec("users", 1000, 4, ("user",)),
    TableSpec("tags", 50, 4, ("tags",), weighted=True),
)
DIRECT = ("csv", "crlf", "parquet", "double", "unended")
KINDS = (*DIRECT, "gzip", "jsonl")


def frame_of(rows, seed=1):
    draw = np.random.default_rng(seed)
    tags = [
        "|".join(f"t{k}:{k}.5" for k in draw.integers(0, 9, n)) for n in draw.integers(0, 4, rows)
    ]
    return pl.DataFrame(
        {
            "y": draw.integers(0, 2, rows),
            "x": draw.standard_normal(rows),
            "user": draw.integers(0, 500, rows),
            "tags": tags,
        }
    )


def write(folder: Path, kind: str, rows=ROWS, seed=1) -> Path:
    """A log in one of the KINDS."""
    path = folder / f"{rows}-{seed}.{kind}"
    frame = frame_of(rows, seed)
    text = frame.write_csv()
    if kind == "parquet":
        frame.write_parquet(path, row_group_size=2000)
    elif kind == "jsonl":
        frame.write_ndjson(path)
    elif kind == "gzip":
        path.write_bytes(gzip.compress(text.encode()))
    elif kind == "crlf":
        path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode() + b"\r\n\r\n")
    elif kind == "double":
        path.write_text(text.replace(",", "::"))
    else:
        path.write_text(text.rstrip("\n") if kind == "unended" else text)
    return path


def tree_of(kind):
    return {**SCHEMA, "delimiter": "::"} if kind == "double" else SCHEMA


def raw_log(paths, kind="csv", on_error="fail"):
    schema = table_schema(tree_of(kind))
    return RawLog(tuple(index_of(path, schema, on_error) for path in paths), schema, on_error)


class ThreadReader:
    """Stands for the process of a reader; `serve` : what it does."""

    stdin = None

    def __init__(self, job, serve) -> None:
        def run() -> None:
            with suppress(OSError):
                serve(job)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def wait(self):
        self._thread.join()
        return 0

    def kill(self) -> None:
        """Its connections are closed by now."""


@pytest.fixture(autouse=True)
def reader_threads(monkeypatch):
    """Readers are threads here, and blocks of text small."""
    monkeypatch.setattr(reading, "start", lambda job: ThreadReader(job, reader.serve))

    def short(path, encoding=""):
        return readers.text_blocks(path, 20_000, encoding)

    monkeypatch.setattr(sources, "text_blocks", short)


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Two logs and what they are converted to, by kind."""
    folder = tmp_path_factory.mktemp("logs")
    found = {}
    for kind in KINDS:
        paths = [write(folder, kind), write(folder, kind, 700, 2)]
        files = []
        for path in paths:
            files.append(path.with_name(f"{path.name}.h5"))
            convert([path], files[-1], "table", ConvertOptions(schema=tree_of(kind)))
        found[kind] = (paths, files)
    return found


def arrays_of(batch):
    kjt = batch.sparse
    yield from (batch.dense, batch.labels, kjt.lengths, kjt.values, kjt.weights)


def assert_same(direct, batches):
    count = 0
    for one, other in itertools.zip_longest(direct, batches):
        for name in ("samples", "epoch", "step", "first"):
            assert getattr(one, name) == getattr(other, name)
        for expected, array in zip(arrays_of(one), arrays_of(other)):
            assert expected.dtype == array.dtype and np.array_equal(expected, array)
            assert array.flags.aligned
        count += 1
    return count


def both(files, dataset, size, shuffle, limits, keys, step=0):
    """A body that compares the batches of the loader with those of readers on each rank."""

    def body(comm):
        share = BatchShare(size, 4, comm.rank, comm.size)
        order = Reading(seed=3, shuffle=shuffle, depth=0)
        needs = Needs(1)
        direct = BatchSchedule(Loader(Dataset(files), TABLES, share, order, needs), *limits)
        told = []
        read = reading.ReaderSchedule(
            Loader(dataset.open(), TABLES, share, order, needs), *limits, comm, keys, told.append
        )
        try:
            count = assert_same(direct.batches(step), read.batches(step))
            return count, told, read.report()["readers"]
        finally:
            read.close()

    return body


@settings(max_examples=12)
@given(st.data())
def test_batches_are_those_of_the_loader(logs, data):
    shuffle = data.draw(st.booleans())
    kind = data.draw(st.sampled_from(DIRECT if shuffle else KINDS))
    paths, files = logs[kind]
    keys = ReadersConfig(
        count=data.draw(st.integers(1, 3)),
        split=16 if shuffle else data.draw(st.integers(1, 3)),
        ahead=data.draw(st.integers(1, 4)),
    )
    size = data.draw(st.sampled_from((3, 700, 4096, 20_000)))
    limits = data.draw(st.sampled_from(((1, 0), (2, 0), (3, 7))))
    if size == 3:
        limits = (1, 50)
    body = both(
        files, raw_log(paths, kind), size, shuffle, limits, keys, data.draw(st.integers(0, 2))
    )
    run_threads(data.draw(st.integers(1, 3)), body)


def test_converted_files_are_read_too(logs):
    _, files = logs["csv"]
    log = reader.ConvertedLog(tuple(map(str, files)))
    ((count, _, _),) = run_threads(1, both(files, log, 512, True, (1, 0), ReadersConfig(count=2)))
    assert count == -(-(ROWS + 700) // 512)


def test_the_queue_holds_no_more_than_was_asked_for(logs):
    paths, files = logs["csv"]
    keys = ReadersConfig(count=3, split=1, ahead=2)
    ((_, _, report),) = run_threads(1, both(files, raw_log(paths), 100, False, (2, 0), keys))
    one = 4096 * 4 * 16  # bytes of a split, about: dense, label, lengths, rows and weights
    assert 0 < report["queue_bytes"] <= 3 * one
    assert report["depth"] <= keys.ahead


def test_splits_of_a_dead_reader_are_read_by_another(logs, monkeypatch):
    dead = threading.Event()

    def serve(job):
        """Reader 0 takes a split, and ends; only then does the other one begin."""
        if job.number:
            assert dead.wait(20)
            reader.serve(job)
            return
        with frames.connect(job.master, job.token) as master:
            frames.send(master, {"reader": job.number, "name": job.name})
            assert "split" in frames.receive(master).note
        dead.set()

    monkeypatch.setattr(reading, "start", lambda job: ThreadReader(job, serve))
    paths, files = logs["parquet"]
    keys = ReadersConfig(count=2, split=1)
    ((_, told, report),) = run_threads(1, both(files, raw_log(paths), 512, False, (1, 0), keys))
    assert [state["lost"] for state in report["by_reader"]] == [True, False]
    assert any("reader 0" in line and "others read its splits" in line for line in told)


def test_a_run_whose_readers_all_end_says_so(logs, monkeypatch):
    monkeypatch.setattr(reading, "start", lambda job: ThreadReader(job, lambda job: None))
    paths, files = logs["csv"]
    with pytest.raises(DataError, match="all readers ended, the last was reader"):
        run_threads(1, both(files, raw_log(paths), 512, False, (1, 0), ReadersConfig(count=2)))


def test_a_reader_whose_trainers_are_gone_ends_without_a_word(logs, capfd):
    nobody = [("127.0.0.1", 1)]
    share = BatchShare(512, 4, 0, 1)
    order = Reading(seed=3, shuffle=False, depth=0)
    log = raw_log(logs["csv"][0])
    job = reader.ReaderJob(0, "reader 0", "t", nobody, [nobody], log, (0, 9), TABLES, share, order)
    with reader.start(job) as process:  # its pipe is still open when it ends
        assert process.wait(60) == 0
    assert capfd.readouterr().err == ""


def test_the_split_of_a_slow_reader_is_read_by_another_too(logs, monkeypatch):
    resumed = threading.Event()
    deliver = reader.deliver

    def late(loader, split, trainers):
        if threading.current_thread().name == "slow":
            resumed.wait(20)
        deliver(loader, split, trainers)

    def serve(job):
        if job.number == 0:
            threading.current_thread().name = "slow"
        reader.serve(job)

    monkeypatch.setattr(reader, "deliver", late)
    monkeypatch.setattr(reading, "start", lambda job: ThreadReader(job, serve))
    paths, files = logs["csv"]
    keys = ReadersConfig(count=2, split=1, slow_after=0.2)
    try:
        ((_, told, _),) = run_threads(1, both(files, raw_log(paths), 512, False, (1, 0), keys))
    finally:
        resumed.set()
    assert any("reader 0" in line and "reads too" in line for line in told)


@pytest.mark.parametrize("rows", [1, 2])
def test_few_rows(tmp_path, rows):
    path = write(tmp_path, "csv", rows)
    target = tmp_path / "log.h5"
    convert([path], target, "table", ConvertOptions(schema=SCHEMA))
    body = both([target], raw_log([path]), 512, False, (2, 0), ReadersConfig(count=3))
    assert [count for count, _, _ in run_threads(2, body)] == [2, 2]


def test_faulty_rows(tmp_path):
    path = write(tmp_path, "csv")
    lines = path.read_text().splitlines()
    lines[4000] = "1,not a number,3,"
    lines[8000] = "1,2"
    path.write_text("\n".join(lines) + "\n")
    target = tmp_path / "log.h5"
    convert([path], target, "table", ConvertOptions(schema=SCHEMA, on_error="skip"))
    log = raw_log([path], on_error="skip")
    assert log.files[0].skipped == 2
    run_threads(1, both([target], log, 512, False, (1, 0), ReadersConfig(count=2, split=1)))
    message = "csv, line 4001, column x: 'not a number' is not a number"
    with pytest.raises(DataError, match=message):
        run_threads(1, both([target], raw_log([path]), 512, False, (1, 0), ReadersConfig(count=2)))


def test_a_log_that_changes_is_told(tmp_path):
    path = write(tmp_path, "csv")
    dataset = raw_log([path]).open()
    path.write_text(path.read_text().replace("\n", "\n\n", 5000))
    with pytest.raises(DataError, match=r"has changed since its rows were counted|line "):
        dataset.take(np.arange(ROWS))
    path.write_text("y,x,user,tags\n")
    with pytest.raises(DataError, match="is shorter than it was"):
        raw_log([write(tmp_path, "csv", 5, 3)])  # another file is not concerned
        replace(dataset.log).open().take(np.arange(3))


def test_empty_logs_are_refused(tmp_path):
    path = tmp_path / "empty.csv"
    path.write_text("y,x,user,tags\n")
    with pytest.raises(DataError, match="has no rows"):
        raw_log([path]).open()
    path.write_text("y,x,user,tags\n1,2\n")
    with pytest.raises(DataError, match=r"no row is left.*line 2 has 2 columns"):
        raw_log([path], on_error="skip").open()


@settings(max_examples=60)
@given(st.data())
def test_damaged_frames_are_no_frames(data):
    near, far = socket.socketpair()
    with near, far:
        frames.send(far, {"split": 3}, [np.arange(5, dtype=np.int32), np.ones((2, 3), np.float32)])
        raw = bytearray(near.recv(1 << 16))
        for place in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=4)):
            raw[place] = data.draw(st.integers(0, 255))
        del raw[data.draw(st.integers(1, len(raw))) :]
        far.sendall(raw)
        far.shutdown(socket.SHUT_WR)
        frame = frames.receive(near)
        assert frame is None or all(array.flags.aligned for array in frame.arrays)


def test_who_is_stopped_for_a_while_is_met(monkeypatch):
    monkeypatch.setattr(frames, "SECONDS", 0.2)
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    met = threading.Event()
    servers = []

    def awake():
        servers.append(frames.Connections(listener, "token", lambda connection: met.set()))

    timer = threading.Timer(0.5, awake)
    timer.start()
    late, far = socket.socketpair()
    with closing(frames.connect([address], "token")) as near, closing(far):
        assert met.wait(5.0)
        timer.join()
        servers[0].close()
        servers[0].add(late)
        for side in (near, far):  # those that were met, and who comes later
            side.settimeout(5.0)
            assert side.recv(1) == b""
    with pytest.raises(ConnectionError):  # at once
        frames.connect([address], "token")


def test_who_does_not_know_the_token_is_not_met():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        met = []
        thread = threading.Thread(target=lambda: met.append(frames.accept(listener, "right")))
        thread.start()
        with pytest.raises(ConnectionError, match=f"no connection to 127.0.0.1:{address[1]}"):
            frames.connect([address], "wrong")
        thread.join()
    assert met == [None]


# ---- files that still come ----


def stream_body(files, coming, log, size, keys, steps=10_000):
    """As `both`, with files that still come."""

    def body(comm):
        share = BatchShare(size, 4, comm.rank, comm.size)
        order = Reading(seed=3, depth=0)
        direct = BatchSchedule(Loader(Dataset(files), TABLES, share, order, Needs(1)), 1, steps)
        data = ComingDataset(log, coming if comm.rank == 0 else None)
        loader = Loader(data, TABLES, share, order, Needs(1))
        read = reading.reader_schedule(loader, 1, steps, comm, keys, lambda text: None)
        try:
            count = assert_same(direct.batches(0), read.batches(0))
            assert read.total_steps == direct.total_steps == count
            assert read.samples_after(count) == direct.samples_after(count)
        finally:
            read.close()

    return body


@pytest.mark.parametrize("steps", [10_000, 4])
def test_files_that_appear_are_read_in_order(tmp_path, monkeypatch, steps):
    monkeypatch.setattr(coming_files, "EVERY", 0.01)
    folder = tmp_path / "in"
    folder.mkdir()
    logs = [write(tmp_path, "csv", rows, rows) for rows in (900, 1, 5000, 1300)]
    files = [log.with_suffix(".h5") for log in logs]
    for log, file in zip(logs, files):
        convert([log], file, "table", ConvertOptions(schema=SCHEMA))
    source = coming_files.Folder(folder, "_END", 0.0)

    def deliver():
        for number, log in enumerate(logs):
            time.sleep(0.1)
            (folder / ".part").write_bytes(log.read_bytes())
            (folder / ".part").rename(folder / f"{number}.csv")
        (folder / "_END").touch()

    writer = threading.Thread(target=deliver)
    writer.start()
    log = replace(raw_log([source.first()]), growing=True)
    keys = ReadersConfig(count=2, split=1, ahead=1)
    run_threads(2, stream_body(files, source, log, 700, keys, steps))
    writer.join()


def test_stdin_is_read_piece_by_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(coming_files, "PIECE", 20_000)
    path = write(tmp_path, "unended")
    convert([path], tmp_path / "log.h5", "table", ConvertOptions(schema=SCHEMA))
    pieces = tmp_path / "pieces"
    source = coming_files.Stdin(io.BytesIO(path.read_bytes()), pieces, table_schema(SCHEMA))
    log = replace(raw_log([source.first()]), growing=True)
    keys = ReadersConfig(count=2, split=1, ahead=1)
    most = []

    def watched(path):
        most.append(len(list(pieces.iterdir())))
        coming_files.Stdin.forget(source, path)

    monkeypatch.setattr(source, "forget", watched)
    run_threads(1, stream_body([tmp_path / "log.h5"], source, log, 700, keys))
    assert not pieces.exists()
    # three splits of a block each, and a piece that was cut
    assert 0 < max(most) <= 3 * 4096 * 40 / 20_000 + 2
    with pytest.raises(DataError, match="the stream cannot be read again"):
        next(source.files())


def test_a_file_that_comes_too_late_is_told(tmp_path):
    (tmp_path / "b.csv").touch()
    files = coming_files.Folder(tmp_path, "_END", 0.0).files()
    assert next(files).name == "b.csv"
    (tmp_path / "a.csv").touch()
    with pytest.raises(DataError, match=r"a\.csv: appeared behind b\.csv"):
        next(files)


@pytest.mark.parametrize(
    "packed", [gzip.compress(b"y,c\n1,a\n", mtime=0), "y,c\n1,a\n".encode("utf-16")]
)
def test_a_stream_that_is_no_plain_text_is_told_as_that(packed, tmp_path):
    source = coming_files.Stdin(io.BytesIO(packed), tmp_path, table_schema(SCHEMA))
    with pytest.raises(DataError, match=r"the stream .* is (gzip|UTF-16); hand on its text"):
        source.first()


def test_without_a_file_that_says_so_a_folder_has_no_end(tmp_path, monkeypatch):
    monkeypatch.setattr(coming_files, "EVERY", 0.01)
    (tmp_path / "a.csv").touch()
    files = coming_files.Folder(tmp_path, "", 0.3).files()
    assert next(files).name == "a.csv"
    threading.Timer(0.1, (tmp_path / "b.csv").touch).start()
    assert [file.name for file in files] == ["b.csv"]


def test_who_waits_no_longer_gets_what_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(coming_files, "EVERY", 0.01)
    folder = coming_files.Folder(tmp_path / "in", "_END", 6.0)
    folder.path.mkdir()
    started = time.monotonic()
    reading, writing = os.pipe()
    stream = coming_files.Stdin(io.FileIO(reading), tmp_path / "out", table_schema(SCHEMA))
    os.write(writing, b"y,x\n1,2\n0,3")
    late = threading.Timer(6.0, os.close, (writing,))
    late.start()
    for source, there in ((folder, 0), (stream, 1)):
        threading.Timer(0.2, setattr, (source, "stopped", True)).start()
        files = source.files() if source is folder else source._pieces
        assert len(list(files)) == there
    assert stream._folder.joinpath("from-line-000000000002.log").read_bytes() == b"y,x\n1,2\n"
    assert time.monotonic() - started < 6.0
    late.cancel()
    os.close(writing)
    stream.close()


def test_a_folder_without_new_files_ends_by_idle_time(tmp_path):
    assert not list(coming_files.Folder(tmp_path, "_END", 0.01).files())
    with pytest.raises(DataError, match="no file came"):
        coming_files.Folder(tmp_path, "_END", 0.01).first()


# ---- runs ----

SCHEMA_TEXT = """
[data.schema]
label = { column = "y" }
[[data.schema.dense]]
columns = ["x"]
kind = "float"
transform = "standard"
[[data.schema.category]]
columns = ["user"]
kind = "int"
[[data.schema.category]]
columns = ["tags"]
separator = "|"
weight_separator = ":"
"""


def config_of(path, *overrides):
    text = small_run.CONFIG.replace("one.rows", "user.rows").replace("many.", "tags.")
    return small_run.config.loads(
        text + SCHEMA_TEXT,
        overrides=[
            f'data.train="{path}"',
            "data.format=table",
            "training.batch_size=512",
            "training.steps=30",
            *overrides,
        ],
    )


def digest(config, folder, ranks=1, resume=False):
    summaries = run_threads(ranks, lambda comm: Trainer(config, comm, folder, resume=resume).run())
    return summaries[0]["digest"]


def test_runs_have_the_digest_of_converted_data(tmp_path):
    path = write(tmp_path, "csv")
    expected = digest(config_of(path), tmp_path / "converted")
    keys = ("readers.count=2", "readers.ahead=3", 'data.deduplicate=["user"]')
    assert digest(config_of(path, *keys), tmp_path / "read", ranks=2) == expected
    # in the middle of the second pass, and with another reader, of the same text compressed
    half = config_of(path, *keys, "training.steps=25")
    digest(half, tmp_path / "half")
    rest = config_of(write(tmp_path, "gzip"), "readers.count=1")
    assert digest(rest, tmp_path / "half", ranks=2, resume=True) == expected


def test_ranks_that_see_the_files_count_them_in_turn():
    files = [FileIndex(f"{number}.csv", [], [1], [1], True) for number in range(5)]

    def body(comm):
        share = files[[0, 2].index(comm.rank) :: 2] if comm.rank != 1 else []
        return raw_train._of_all(comm, share, [0, 2], 5)

    for indices in run_threads(3, body):
        assert [index.path for index in indices] == [file.path for file in files]


def test_a_followed_folder_has_the_digest_of_its_files(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder, "csv", 3000, 1)
    write(folder, "csv", 4001, 2)
    (folder / "_END").touch()
    plain = ("data.shuffle=false", 'data.schema.dense=[{columns=["x"],kind="float"}]')
    one_pass = (*plain, "training.epochs=1", "training.steps=100")
    expected = digest(config_of(folder, *one_pass), tmp_path / "converted")
    follow = (*one_pass, "readers.count=2", "readers.follow=true")
    assert digest(config_of(folder, *follow), tmp_path / "read", ranks=2) == expected
    digest(config_of(folder, *follow, "training.steps=5"), tmp_path / "half")
    assert digest(config_of(folder, *follow), tmp_path / "half", resume=True) == expected
    # it had ended: nothing is left to train on
    assert digest(config_of(folder, *follow), tmp_path / "half", resume=True) == expected


def test_a_signal_is_heeded_while_data_are_waited_for(tmp_path, monkeypatch):
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder, "csv", 3000, 1)
    keys = ("data.shuffle=false", 'data.schema.dense=[{columns=["x"],kind="float"}]')
    keys = (*keys, "training.epochs=1", "training.steps=100", "readers.count=1")
    config = config_of(folder, *keys, "readers.follow=true", "readers.idle=20")
    taken = BatchQueue._take

    def signalled(queue):
        if queue.counts.splits:  # the data that are there have been taken
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return taken(queue)

    monkeypatch.setattr(BatchQueue, "_take", signalled)
    with pytest.raises(Stopped, match="a checkpoint is written"):
        Trainer(config, SingleComm(), tmp_path / "out").run()
    monkeypatch.undo()
    write(folder, "csv", 4001, 2)
    (folder / "_END").touch()
    expected = digest(config, tmp_path / "whole")
    assert digest(config, tmp_path / "out", resume=True) == expected


def test_a_signal_is_heeded_where_nobody_writes_into_the_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    keys = ("data.shuffle=false", 'data.schema.dense=[{columns=["x"],kind="float"}]')
    config = config_of(tmp_path / "pipe", *keys, "training.epochs=1", "readers.count=1")
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    # whoever does not heed it hears that nothing comes
    late = threading.Timer(9.0, lambda: os.close(os.open(tmp_path / "pipe", os.O_RDWR)))
    late.start()
    with pytest.raises(Stopped, match="what was not finished is removed"):
        Trainer(config, SingleComm(), tmp_path / "out").run()
    late.cancel()


def test_a_pipe_is_read_by_rank_0(tmp_path):
    path = write(tmp_path, "csv", 3000)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    keys = ("data.shuffle=false", 'data.schema.dense=[{columns=["x"],kind="float"}]')
    keys = (*keys, "training.epochs=1")
    expected = digest(config_of(path, *keys), tmp_path / "converted")
    writer = threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes()))
    writer.start()
    config = config_of(pipe, *keys, "readers.count=1")
    assert digest(config, tmp_path / "read", ranks=2) == expected
    writer.join()
    with pytest.raises(ConfigError, match="make a pipe with mkfifo"):
        digest(config_of("-", *keys, "readers.count=1"), tmp_path / "stdin", ranks=2)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("data.shuffle=true",), "data.shuffle needs all samples"),
        (("data.split=[0.8,0.1,0.1]",), "data.split needs all samples"),
        (("data.schema.dense=[{columns=['x'],transform='standard'}]",), "write them as fitted"),
        (("training.steps=0",), "nobody knows how long its one pass is"),
    ],
)
def test_what_needs_all_samples_is_refused(tmp_path, keys, message):
    (tmp_path / "in").mkdir()
    plain = ("data.shuffle=false", 'data.schema.dense=[{columns=["x"],kind="float"}]')
    config = config_of(tmp_path / "in", *plain, "readers.count=1", "readers.follow=true", *keys)
    with pytest.raises(ConfigError, match=message):
        digest(config, tmp_path / "out")


@pytest.mark.parametrize(
    ("kind", "overrides", "message"),
    [
        ("jsonl", (), "data.shuffle: samples of .* cannot be read in another order"),
        ("csv", ("data.rows_by=vocabulary",), "counts codes; name a data set in data.vocabulary"),
        ("csv", ("memory.warm=true",), "memory.warm counts codes"),
        ("csv", ("data.schema.session=user",), "data.schema.session = 'user' moves rows"),
    ],
)
def test_what_needs_a_conversion_is_refused(tmp_path, kind, overrides, message):
    path = write(tmp_path, kind)
    with pytest.raises(ConfigError, match=message):
        digest(config_of(path, "readers.count=1", *overrides), tmp_path / "out")


def test_a_dry_run_says_how_many_are_needed(tmp_path, monkeypatch):
    config = config_of(write(tmp_path, "csv"), "readers.count=1")
    text = rates.readers_line(config, 0.0)
    assert re.match(r"readers: one parses about .* samples/s here \(\d,\d{3} rows measured", text)
    assert text.endswith("how many a run needs follows from its steps: `neocpu plan --machine`")
    monkeypatch.setattr(rates, "reader_rate", lambda config: rates.ReaderRate(1000.0, 10))
    # 512 samples a step; shuffled, each is parsed twice
    assert rates.readers_line(config, 0.256).endswith(": 4 readers keep up")
    assert rates.readers_line(config, 512).endswith(": 1 reader keeps up")


@pytest.mark.parametrize("kind", ["csv", "gzip", "parquet"])
def test_files_that_were_read_keep_nothing_open(tmp_path, kind):
    """A stream has thousands of them; each would keep its parser, or a whole decompressor."""
    log = raw_log([write(tmp_path, kind, 100, seed) for seed in range(9)], kind)
    dataset = log.open()
    for first in range(0, 900, 50):
        dataset.take(np.arange(first, first + 50))
        keep = [file for file in dataset._files if file._source is not None or file._kept]
        assert keep == [dataset._files[first // 100]]


def test_a_plan_for_a_machine_says_how_many_are_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(rates, "reader_rate", lambda config: rates.ReaderRate(1e6, 10))
    words = ["tiny", "--set", "readers.count=1"]
    done = CliRunner().invoke(plan, [*words, "--machine", "zionex"])
    assert done.exit_code == 0, done.output
    line = next(line for line in done.output.splitlines() if line.startswith("readers: "))
    assert re.search(r"steps take [\d.]+ [kM] samples/s: \d+ readers? keeps? up$", line)
    # without a machine nobody knows how long a step takes
    assert "`neocpu plan --machine`" in CliRunner().invoke(plan, words).output


def test_a_split_that_cuts_windows_is_refused():
    with pytest.raises(ConfigError, match=r"readers.split.*shuffled in windows of 16"):
        config_of("log.csv", "readers.count=1", "readers.split=3")
    config_of("log.csv", "readers.count=1", "readers.split=3", "data.shuffle=false")


def test_files_that_still_come_need_readers():
    with pytest.raises(ConfigError, match=r"readers.follow.*: --readers 1"):
        config_of("in", "readers.follow=true", "data.shuffle=false")
