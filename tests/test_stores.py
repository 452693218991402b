"""Is a log in a store the log that it is on disk, fetched once, whatever happens on the way?"""

import io
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from neocpu.cli import cli
from neocpu.core.errors import ConfigError, DataError
from neocpu.core.paths import full_address, place_paths
from neocpu.ingest import copy_cache
from neocpu.ingest.formats.files import remote
from neocpu.ingest.formats.files.folders import folder_keys, log_files
from neocpu.train.advice.write import Wishes, write_config
from neocpu.train.checkpoint.places import open_place
from neocpu.train.config import config as configs

fsspec = pytest.importorskip("fsspec")

ROWS = b"label,item\n" + b"".join(b"%d,%d\n" % (i % 2, i % 7) for i in range(400))
FILES = {
    "clicks/day=1/part-0.csv": ROWS,
    "clicks/day=1/_SUCCESS": b"",
    "clicks/day=2/part-0.csv": ROWS[::-1],
    "clicks/day=2/part-1.csv.crc": b"1",
}


class Torn(io.BytesIO):
    """A file whose connection breaks."""

    def __init__(self, content: bytes, breaks_at: int) -> None:
        super().__init__(content)
        self._breaks_at = breaks_at

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() >= self._breaks_at:
            raise OSError("connection reset by peer")
        return super().read(min(size or -1, self._breaks_at - self.tell()))


class TornStore(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Sends 1,000 bytes of a file before its connection breaks."""

    protocol = "torn"
    cachable = False
    content = b""
    opened: int = 0
    breaks = True

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("torn://")

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        size = len(self.content)
        return {"name": path, "size": size, "type": "file", "ETag": str(hash(self.content))}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        return [self.info(path) if detail else path]

    def open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        type(self).opened += 1
        sent = 1000 * self.opened if self.breaks else len(self.content) + 1
        return Torn(self.content, sent)


@pytest.fixture
def torn(cache: Path, monkeypatch: pytest.MonkeyPatch) -> type[TornStore]:
    fsspec.register_implementation("torn", TornStore, clobber=True)
    monkeypatch.setattr(remote, "PAUSE", 0.0)
    monkeypatch.setattr(TornStore, "content", ROWS)
    monkeypatch.setattr(TornStore, "opened", 0)
    return TornStore


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEOCPU_DATA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def store(cache: Path) -> Iterator[Any]:
    """A store in memory with two days of clicks."""
    memory = fsspec.filesystem("memory")
    for name, content in FILES.items():
        memory.pipe(f"/{name}", content)
    yield memory
    memory.rm("/clicks", recursive=True)


def test_folders_and_patterns_are_logs_with_their_columns(store: Any) -> None:
    files = log_files("memory://clicks/")
    assert [file.read_bytes() for file in files] == [ROWS, ROWS[::-1]]
    assert [folder_keys(file) for file in files] == [{"day": "1"}, {"day": "2"}]
    assert log_files("memory://clicks/day=*/") == files
    assert log_files(Path("memory://clicks/day=2/part-0.csv")) == files[1:], "Path has one slash"


def test_a_file_is_fetched_once_and_again_when_it_has_changed(store: Any) -> None:
    (file,) = log_files("memory://clicks/day=1")
    file.write_bytes(b"ours")  # to see whether it is fetched
    assert log_files("memory://clicks/day=1")[0].read_bytes() == b"ours"
    store.pipe("/clicks/day=1/part-0.csv", b"label,item\n")
    assert log_files("memory://clicks/day=1")[0].read_bytes() == b"label,item\n"


def test_copies_count_in_the_cache_and_go_with_it(store: Any, cache: Path) -> None:
    (file,) = log_files("memory://clicks/day=1")
    assert [copy.size for copy in copy_cache.copies()] == [len(ROWS)]
    os.close(copy_cache._held.pop(file))  # as when the run has ended
    gone, left = copy_cache.clear()
    assert [copy.path for copy in gone] == [file] and not left
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_two_files_that_would_have_one_copy_are_refused(store: Any) -> None:
    for name in ("ü.csv", "%C3%BC.csv"):
        store.pipe(f"/clicks/day=3/{name}", ROWS)
    with pytest.raises(DataError, match=r"two files of it would have one copy, .*%C3%BC\.csv"):
        log_files("memory://clicks/day=3")


def test_a_store_that_refuses_says_why(torn: type[TornStore], monkeypatch: Any) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "not valid for\nthe storage class")

    monkeypatch.setattr(torn, "info", refused)
    with pytest.raises(DataError, match=r"access denied \(.*for the storage class\); fsspec reads"):
        log_files("torn://clicks.csv")


def test_a_copy_without_room_is_refused(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEOCPU_DATA_CACHE_GIB", "0.0000001")
    with pytest.raises(DataError, match=r"no room for a copy of .*part-0\.csv"):
        log_files("memory://clicks/day=1")


def test_an_interrupted_transfer_goes_on_where_it_was(torn: type[TornStore]) -> None:
    (file,) = log_files("torn://clicks.csv")
    assert file.read_bytes() == ROWS
    assert torn.opened == -(-len(ROWS) // 1000), "bytes were sent twice"


def test_a_later_run_goes_on_with_what_came(
    torn: type[TornStore], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "TRIES", 0)
    with pytest.raises(DataError, match="the store says: connection reset by peer"):
        log_files("torn://clicks.csv")
    (part,) = cache.rglob("*.part")
    assert part.read_bytes() == ROWS[:1000]
    monkeypatch.setattr(remote, "TRIES", 5)
    assert log_files("torn://clicks.csv")[0].read_bytes() == ROWS
    assert not list(cache.rglob("*.part")), "the part became the copy"


def test_what_came_of_another_content_is_no_part_of_it(
    torn: type[TornStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "TRIES", 0)
    with pytest.raises(DataError):
        log_files("torn://clicks.csv")
    monkeypatch.setattr(torn, "content", ROWS[::-1])
    monkeypatch.setattr(torn, "breaks", False)
    assert log_files("torn://clicks.csv")[0].read_bytes() == ROWS[::-1]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("memory://clicks/none.csv", "memory://clicks/none.csv: no such file in the store"),
        ("memory://clicks/day=9*", "no such file in the store"),
        ("nosuch://clicks.csv", "the store says: Protocol not known: nosuch"),
        ("s3n://logs/clicks.csv", "Protocol not known: s3n; write s3://"),
    ],
)
def test_what_a_store_has_not_is_one_sentence(address: str, message: str, cache: Path) -> None:
    with pytest.raises(DataError, match=message):
        log_files(address)


@pytest.mark.parametrize(
    "address",
    [
        "ftp://me:hunter2@host/clicks.csv",
        "https://host/clicks.csv?X-Amz-Signature=hunter2",
        "https://host/clicks.csv?sv=2020&sig=hunter2",
        "https://host/clicks.csv?api_key=hunter2",
        "https://hunter2@host/clicks.csv",
    ],
)
def test_addresses_with_credentials_are_refused_without_them(address: str, cache: Path) -> None:
    with pytest.raises(ConfigError, match="carries credentials") as caught:
        log_files(address)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    ["abfs://clicks@account.dfs.core.windows.net/day=1", "hdfs://me@host/clicks", "sftp://me@host"],
)
def test_a_user_or_a_container_is_no_secret(address: str) -> None:
    assert remote.checked_address(address) == address


def test_a_list_names_logs_of_several_places(store: Any, tmp_path: Path) -> None:
    (tmp_path / "here.csv").write_bytes(ROWS)
    names = tmp_path / "train.txt"
    names.write_text("# both\n  # these\nhere.csv\n\nmemory://clicks/day=2\n")
    files = log_files(tmp_path / "@train.txt")
    assert [file.name for file in files] == ["here.csv", "part-0.csv"]
    names.write_text("# none\n")
    with pytest.raises(DataError, match=r"train.txt: the list names no log"):
        log_files(tmp_path / "@train.txt")
    names.write_text("@other.txt\n")
    (tmp_path / "other.txt").write_text(f"here.csv\n../{tmp_path.name}/@train.txt\n")
    with pytest.raises(DataError, match=r"@train.txt: a list that names itself"):
        log_files(tmp_path / "@train.txt")


def test_a_folder_has_what_its_links_lead_to(tmp_path: Path) -> None:
    there = tmp_path / "disk" / "day=2"
    there.mkdir(parents=True)
    (there / "part-0.csv").write_bytes(ROWS)
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "day=2").symlink_to(there)
    (there / "up").symlink_to(logs)
    assert log_files(logs) == [logs / "day=2/part-0.csv"]
    (there / "part-1.csv").symlink_to("gone.csv")
    assert log_files(logs)[1:] == [logs / "day=2/part-1.csv"]


def test_what_is_being_written_and_what_tools_leave_is_no_log(tmp_path: Path) -> None:
    for name in ("part-0.csv", "part-1.csv"):
        (tmp_path / name).write_bytes(ROWS)
    others = ("_SUCCESS", "day_$folder$", "part-2.csv.tmp", "part-3.csv._COPYING_", "part-0.csv~")
    for name in (*others, "#part-0.csv#", "schema.pbtxt", "state.json", ".part-4.csv"):
        (tmp_path / name).write_bytes(ROWS)
    both = [tmp_path / "part-0.csv", tmp_path / "part-1.csv"]
    assert log_files(tmp_path) == log_files(tmp_path / "*") == both
    assert log_files(tmp_path / "*.tmp") == [tmp_path / "part-2.csv.tmp"], "it is asked for"


@pytest.mark.parametrize("mark", ["_delta_log/0.json", ".hoodie/x", "_spark_metadata/0"])
def test_a_table_whose_files_do_not_all_count_is_refused(mark: str, tmp_path: Path) -> None:
    (tmp_path / mark).parent.mkdir()
    for name in (mark, "part-0.parquet"):
        (tmp_path / name).write_bytes(b"")
    for log in (tmp_path, f"file://{tmp_path}"):
        with pytest.raises(DataError, match=rf"{log}: a .* \({mark.partition('/')[0]}\)"):
            log_files(log)
    assert log_files(tmp_path / "*.parquet") == [tmp_path / "part-0.parquet"]


def test_objects_that_mark_folders_and_names_with_brackets(store: Any) -> None:
    for name in ("day=3/a[1].csv", "day=3/_SUCCESS", "day=3_$folder$"):
        store.pipe(f"/clicks/{name}", ROWS)
    assert len(log_files("memory://clicks/")) == 3
    for log in ("memory://clicks/day=3/*", "memory://clicks/day=3/a[1].csv"):
        assert [file.name for file in log_files(log)] == ["a%5B1%5D.csv"]


def test_a_cache_that_cannot_be_written_is_not_the_stores_fault(store: Any, cache: Path) -> None:
    (cache / "remote").mkdir(parents=True)
    (cache / "remote" / "memory").write_bytes(b"")
    with pytest.raises(DataError, match=r"cannot be kept in .*; NEOCPU_DATA_CACHE names another"):
        log_files("memory://clicks/day=1")


def test_configs_keep_addresses_whole(store: Any, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    write_config([Path("memory://clicks/day=1")], config, Wishes())
    assert 'train = "memory://clicks/day=1"' in config.read_text()
    assert configs.load(config).data.train == ("memory://clicks/day=1",)
    assert not place_paths({"data": {"train": ["s3://a/b.csv"]}}, "configs")
    for address in ("hdfs:///logs/a.csv", "hdfs://name:8020/logs/a.csv"):
        assert full_address(Path(address)) == address


@pytest.mark.parametrize(
    "command",
    [
        "init LOG",
        "init clicks.csv --valid LOG",
        "init clicks.csv --test LOG",
        "fit LOG --label label",
        "fit clicks.csv --test LOG",
        "data convert criteo LOG train.h5",
        "data negatives LOG --user label --item item --out labelled.csv",
        "data show LOG",
    ],
)
def test_an_address_reaches_the_store_as_it_is_written(
    command: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def store_at(address: str) -> None:
        raise ValueError("seen")

    monkeypatch.setattr(remote, "store_at", store_at)
    monkeypatch.chdir(tmp_path)
    Path("clicks.csv").write_bytes(b"label,item\n" + b"1,a\n0,b\n" * 9)
    for address in ("hdfs://nameservice/a.csv", "hdfs:///a.csv"):
        result = CliRunner().invoke(cli, command.replace("LOG", address).split())
        assert str(result.exception) == f"{address}: the store says: seen"


class WebServer(BaseHTTPRequestHandler):
    """Answers as servers do that send whole files only, are busy, or send one on."""

    asked: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        self.asked[self.path] += 1
        status, head, body = 200, {}, ROWS
        if self.path.startswith("/denied"):
            status, body = 403, b""
        elif self.path == "/signed.csv":
            status, head, body = 302, {"Location": "/denied?X-Amz-Signature=hunter2"}, b""
        elif self.path == "/busy.csv" and self.asked[self.path] < 4:
            status, body = 503, b""
        elif self.path == "/list/":
            head = {"Content-Type": "text/html"}
            body = b"".join(
                b'<a href="%s">x</a>' % name for name in (b"../", b"?C=N;O=D", b"a.csv", b"b.csv")
            )
        elif self.path == "/links.csv":  # without a type it might be a page
            body = b"label,item\n" + b'1,<a href="links.csv/x">\n' * 9
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **head}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def web(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(remote, "PAUSE", 0.0)
    monkeypatch.setattr(remote, "BLOCK", 1000)
    WebServer.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), WebServer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_servers_of_the_web_that_send_whole_files_or_are_busy(web: str) -> None:
    for name in ("whole.csv", "busy.csv"):
        (file,) = log_files(f"{web}/{name}")
        assert file.read_bytes() == ROWS
    assert WebServer.asked["/busy.csv"] > 3
    (file,) = log_files(f"{web}/links.csv")
    assert file.read_bytes().count(b"href") == 9, "it is a file whatever is in it"


def test_a_listing_of_the_web_is_a_folder_without_its_ways_to_sort(web: str) -> None:
    assert [file.name for file in log_files(f"{web}/list/")] == ["a.csv", "b.csv"]


def test_a_refusal_does_not_say_what_lets_one_in(web: str) -> None:
    with pytest.raises(DataError, match=r"signed\.csv: the store says: 403") as caught:
        log_files(f"{web}/signed.csv")
    assert "hunter2" not in str(caught.value)


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """A server of the real protocol on this machine: one, as fsspec keeps connections."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server,
    ):
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(server.stderr or ()))
        reader.start()
        try:
            end = time.monotonic() + 60
            while not any("Running on" in line for line in lines):
                assert time.monotonic() < end and server.poll() is None, lines
                time.sleep(0.05)
            address = next(line for line in lines if "Running on" in line).split()[-1]
            settings = {"ENDPOINT_URL": address, "ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s"}
            for name, value in settings.items():
                monkeypatch.setenv(f"AWS_{name}", value)
            yield fsspec.filesystem("s3", skip_instance_cache=True)
        finally:
            server.terminate()
            reader.join()


def test_logs_of_s3_are_read(s3: Any, cache: Path) -> None:
    s3.mkdir("logs")
    for name, content in FILES.items():
        s3.pipe(f"logs/{name}", content)
    for mark in ("clicks/", "clicks/day=2"):
        s3.pipe(f"logs/{mark}", b"")
    assert len(log_files("s3://logs/clicks")) == 2
    files = log_files("s3://logs/clicks/day=*/")
    assert [file.read_bytes() for file in files] == [ROWS, ROWS[::-1]]
    assert log_files("s3://logs/clicks/day=2/part-0.csv") == files[1:]
    with pytest.raises(DataError, match="no such file in the store"):
        log_files("s3://nowhere/clicks.csv")
    # another process writes, of which this one has not heard
    writer = fsspec.filesystem("s3", skip_instance_cache=True)
    writer.pipe("logs/clicks/day=2/part-0.csv", ROWS)
    writer.pipe("logs/clicks/day=3/part-0.csv", ROWS)
    assert [file.read_bytes() for file in log_files("s3://logs/clicks")] == [ROWS] * 3


def test_copies_of_checkpoints_in_s3(s3: Any, tmp_path: Path) -> None:
    s3.mkdir("backup")
    place = open_place("s3://backup/runs/a")
    assert not place.names()
    source = tmp_path / "step-00000001.h5"
    source.write_bytes(ROWS * 4000)  # more than one part of an upload
    seen: list[int] = []
    place.put(source, seen.append)
    assert place.names() == {source.name: len(ROWS) * 4000} and seen[-1] == len(ROWS) * 4000

    def stop(done: int) -> None:
        raise DataError("stopped")

    with pytest.raises(DataError, match="stopped"):
        place.put(source.rename(tmp_path / "step-00000002.h5"), stop)
    assert [*place.names()] == ["step-00000001.h5"], "half a file has its name"
    place.get("step-00000001.h5", source, seen.append)
    assert source.read_bytes() == ROWS * 4000
    place.write("best.json", b"{}")
    place.remove(source.name)
    place.remove(source.name)
    assert s3.find("backup") == ["backup/runs/a/best.json"]
    with pytest.raises(DataError, match="s3://nowhere/a: "):
        open_place("s3://nowhere/a").write("best.json", b"{}")
