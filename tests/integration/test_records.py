"""Records on a real disk: written once and whole, found, carried, and told from what has been changed."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from pinner.errors import RecordError, UsageError
from pinner.host.home import Home
from pinner.measure import records
from pinner.measure.carry import export_record, import_record, read_file
from pinner.measure.find_records import all_records, find_record, moment
from pinner.measure.record_pins import deployment_files, moved
from pinner.measure.records import damage, store, untouched
from pinner.model.facts import Override, Unknown
from tests.integration.command import Pinner
from tests.integration.records import BEGAN, LOCK, files, measurement, record, stored


@pytest.fixture
def pinner(capsys: pytest.CaptureFixture[str]) -> Pinner:
    return Pinner(capsys)


def writer(code: str, *argv: str | Path) -> subprocess.Popen[bytes]:
    """A process of its own that stores a record."""
    program = f"import sys\nfrom pathlib import Path\nfrom tests.integration.records import *\n{code}"
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, argv)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )


def names(home: Home) -> list[str]:
    return sorted(path.name for path in home.records.iterdir() if path.name != ".lock")


def test_a_record_is_named_by_content_and_cannot_be_changed_by_accident(state: Home) -> None:
    one = stored(state)
    assert one.path.name == f"tiny-20261130-005320-{one.id[:12]}" == one.name
    assert one.is_new
    assert read_file(one, "deployment/tiny.lock") == LOCK
    modes = {stat.S_IMODE(path.stat().st_mode) for path in one.path.rglob("*") if path.is_file()}
    assert modes == {0o444}
    again = stored(state)
    assert (again.id, again.is_new) == (one.id, False)
    assert stored(state, bench="other").id != one.id
    assert len(names(state)) == 2


def test_record_json_is_what_its_schema_says(state: Home) -> None:
    schema = json.loads((Path(__file__).parents[2] / "docs" / "record.schema.json").read_text())
    one = stored(state, overrides=(Override("source.commit", "meant"),), before={"drift": []})
    jsonschema.validate(json.loads((one.path / "record.json").read_text()), schema)


def test_the_name_does_not_depend_on_who_stores_it(state: Home, tmp_path: Path) -> None:
    """Neither zone nor umask: the digest is of what was measured."""
    one = stored(state)
    old, zone = os.umask(0o077), os.environ.get("TZ")
    try:
        os.environ["TZ"] = "Asia/Tokyo"
        time.tzset()
        other = stored(Home(tmp_path / "other"))
    finally:
        os.umask(old)
        os.environ.pop("TZ")
        if zone is not None:
            os.environ["TZ"] = zone
        time.tzset()
    assert (other.id, other.name) == (one.id, one.name)
    assert stat.S_IMODE((other.path / "record.json").stat().st_mode) == 0o444


def test_numbers_that_are_none_and_bytes_that_are_no_text_lose_no_record(state: Home) -> None:
    bad = measurement(0, 0, float("nan"))
    one = stored(state, measurements=(bad,), arguments={"path": "a\udcffb", "x": float("inf"), "y": None})
    assert one.record.measurements[0].metrics == {"accept_length": 2.5}
    assert one.record.arguments == {"path": "a\\xffb", "y": None}


@pytest.mark.parametrize("name", ["../x", "/x", "a/../x", "record.json", "", "a\nb", "a//b", "statement.json"])
def test_no_file_of_a_record_lies_elsewhere(state: Home, name: str) -> None:
    with pytest.raises(RecordError, match="the file"):
        store(record(), {name: b"x"}, state)
    assert names(state) == []


def test_a_writer_that_is_killed_leaves_nothing_that_counts(state: Home, tmp_path: Path) -> None:
    """It is stopped at a file that never comes, with others on the disk already."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code = 'store(record(), {"a": b"x", "z": Path(sys.argv[2])}, Home(Path(sys.argv[1])))'
    process = writer(code, state.root, pipe)
    with pipe.open("wb"):  # opens once the writer reads
        assert (state.records / ".stage" / "a").exists()
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert all_records(state) == ([], [])
    one = stored(state)
    assert names(state) == [one.name], "what was left is gone"


def test_kills_in_the_middle_of_many_records(state: Home) -> None:
    """At whatever moment: what is listed is whole, and the next writer is not in the way of the last."""
    code = (
        "home, name = Home(Path(sys.argv[1])), sys.argv[2]\n"
        "for number in range(10_000): print(stored(home, bench=f'{name}-{number}').id, flush=True)"
    )
    for number in range(5):
        process = writer(code, state.root, str(number))
        assert process.stdout is not None
        told = [process.stdout.readline().decode().strip() for _ in range(3 + number)]
        process.send_signal(signal.SIGKILL)
        process.communicate()
        found, damaged = all_records(state)
        assert damaged == []
        assert {one.id for one in found} >= set(told)
        assert all(damage(one) == [] for one in found)


def test_racing_writers_make_one_record(state: Home) -> None:
    code = "one = stored(Home(Path(sys.argv[1])))\nprint(one.id, one.is_new)"
    said = [process.communicate() for process in [writer(code, state.root) for _ in range(4)]]
    assert all(not err for _, err in said), said
    words = [out.decode().split() for out, _ in said]
    assert len({identity for identity, _ in words}) == 1
    assert sorted(is_new for _, is_new in words) == ["False", "False", "False", "True"]
    assert untouched(state.records / names(state)[0]).id == words[0][0]


def test_a_full_disk_leaves_nothing(state: Home) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limit[1]))
    try:
        with pytest.raises(OSError, match="large"):
            store(record(), files(big=b"x" * 100_000), state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert names(state) == []
    assert stored(state).is_new


def rewrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def test_every_change_is_found_and_named(state: Home, pinner: Pinner) -> None:
    one = stored(state)
    assert damage(one) == []
    rewrite(one.path / "samples/0-1.jsonl.gz", b"other")
    (one.path / "deployment/tiny.lock").unlink()
    assert damage(one) == ["deployment/tiny.lock is missing", "samples/0-1.jsonl.gz has been changed"]
    for command in (("verify", one.short), ("export", one.short)):
        said = pinner("records", *command)
        assert (said.code, "samples/0-1.jsonl.gz" in said.err) == (2, True)
    shown = pinner("records", "show", one.short)
    assert (shown.code, "samples/0-1.jsonl.gz has been changed" in shown.out) == (2, True)
    with pytest.raises(RecordError, match="damaged"):
        stored(state)


def test_a_changed_record_json_is_no_record(state: Home, pinner: Pinner) -> None:
    one = stored(state)
    path = one.path / "record.json"
    rewrite(path, path.read_bytes().replace(b"100.0", b"200.0"))
    said = pinner.json("records")
    assert (said.code, said.data["records"]) == (0, [])
    assert "has been changed" in said.data["damaged"][0]["reason"]
    for text in (one.short, one.name, str(one.path)):
        failed = pinner("records", "show", text)
        assert (failed.code, "record.json" in failed.err) == (2, True)


def test_a_newer_record_says_what_reads_it(state: Home) -> None:
    data = records.encode(record()).replace(b'"format": 1', b'"format": 2').replace(b'"0.1.0"', b'"9.1.0"')
    with pytest.raises(RecordError, match="newer") as caught:
        records.decode(data, "x")
    assert "9.1.0" in (caught.value.hint or "")
    for broken in (b"", b"{}", b"[" * 100_000, b'{"format": 1}', data.replace(b'"tiny"', b'"../x"')):
        with pytest.raises(RecordError):
            records.decode(broken, "x")


def test_a_record_is_found_by_all_its_names(state: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = tmp_path / "tiny.toml"
    here.write_text("version = 1\n")
    old = stored(state, manifest=str(here))
    new = stored(state, began=BEGAN + 100, ended=BEGAN + 200)
    foreign = stored(state, began=BEGAN + 300, ended=BEGAN + 300, origin="foreign")
    exported = export_record(old, tmp_path)
    for text in (old.id, old.short, old.id[:6], old.name, str(old.path), str(exported)):
        assert find_record(text, state).id == old.id, text
    assert find_record("tiny", state).id == old.id, "the manifest here has a record of its own"
    assert find_record("tiny.toml", state).id == old.id
    assert find_record("elsewhere/tiny.toml", state).id == new.id, "the newest of that name that has pins"
    assert find_record(foreign.short, state).id == foreign.id
    for text, said in (("nope", "there is no record"), ("ffffffffff", "there is no record"), ("", "no record")):
        with pytest.raises(UsageError, match=said):
            find_record(text, state)


def test_an_ambiguous_word_lists_whom_it_may_mean(state: Home) -> None:
    """The beginning of an id that is a deployment's name too."""
    one = stored(state)
    twin = stored(state, deployment=one.id[:6])
    with pytest.raises(UsageError, match="may mean 2 records") as caught:
        find_record(one.id[:6], state)
    assert one.short in caught.value.message
    assert twin.short in caught.value.message
    assert find_record(one.id[:7], state).id == one.id


def test_a_record_that_is_not_there_is_2(pinner: Pinner, tmp_path: Path) -> None:
    for command in (("show",), ("export",), ("verify",), ("sign", "--key", tmp_path / "key")):
        said = pinner.json("records", command[0], "abcdef", *command[1:])
        assert (said.code, said.json["command"]) == (2, f"records {command[0]}")
        assert "there is no record abcdef" in said.json["errors"][0]["message"]


def test_times_as_people_write_them() -> None:
    assert moment("2026-11-23") == 1_795_392_000.0
    assert moment("2026-11-23T01:00+01:00") == 1_795_392_000.0
    assert moment("7d", now=700_000.0) == 700_000.0 - 604_800
    with pytest.raises(UsageError, match="no time"):
        moment("yesterday")


def test_the_list_and_its_filters(state: Home, pinner: Pinner) -> None:
    assert pinner("records").out == "no records\n"
    good = stored(state)
    bad = stored(state, bench="cold", began=BEGAN + 86_400, ended=BEGAN + 86_400, invalid=("drift after",))
    foreign = stored(state, deployment="old", origin="foreign", began=BEGAN - 10, ended=BEGAN)
    said = pinner.json("records")
    assert [one["id"] for one in said.data["records"]] == [bad.id, good.id, foreign.id]
    (load,) = said.data["records"][1]["loads"]
    assert (load["metrics"]["output_throughput"], load["starts"], load["measurements"]) == (100.5, 2, 4)
    text = pinner("records").out.splitlines()
    assert text[1].split()[0] == bad.short
    assert "invalid" in text[1]
    assert "100.5" in text[2]
    assert "2.50" in text[2]
    assert "foreign" in text[3]
    for filters, expected in (
        (("--valid",), [good, foreign]),
        (("--deployment", "old"), [foreign]),
        (("--bench", "cold"), [bad]),
        (("--since", "2026-12-01"), [bad]),
    ):
        found = pinner.json("records", *filters).data["records"]
        assert [one["id"] for one in found] == [one.id for one in expected], filters
    assert pinner("records", "--since", "yesterday").code == 2


def test_a_start_that_does_not_count_takes_its_measurements_with_it(state: Home, pinner: Pinner) -> None:
    from pinner.model.record import Start  # noqa: PLC0415

    starts = (Start(run="a", began=BEGAN, invalid=("throttled",)), Start(run="b", began=BEGAN))
    one = stored(state, starts=starts)
    (load,) = pinner.json("records").data["records"][0]["loads"]
    assert (load["metrics"]["output_throughput"], load["starts"], load["not_counted"]) == (101.0, 1, 2)
    assert "throttled" in pinner("records", "show", one.short).out


def test_a_record_whose_pins_have_moved_is_stale(state: Home, tmp_path: Path, pinner: Pinner) -> None:
    manifest, lock = tmp_path / "tiny.toml", tmp_path / "tiny.lock"
    one = stored(state, manifest=str(manifest))
    assert isinstance(moved(one), Unknown)
    manifest.write_text("version = 1\n")
    assert isinstance(moved(one), Unknown), "there is no lock"
    lock.write_bytes(LOCK)
    assert moved(one) == ()
    lock.write_bytes(LOCK.replace(b'"sha256:1"', b'"sha256:2"') + b"# relocked for a new bench\n")
    assert moved(one) == (), "nothing that it pins"
    lock.write_bytes(LOCK.replace(b'"x"', b'"y"') + b'[model]\npath = "m"\n')
    assert moved(one) == ("engine.argv", "model")
    said = pinner.json("records").data["records"][0]
    assert (said["stale"], said["moved"]) == (True, ["engine.argv", "model"])
    assert "stale (engine.argv, model)" in pinner("records").out
    lock.write_bytes(b"= no TOML")
    assert isinstance(moved(one), Unknown)
    assert pinner.json("records").data["records"][0]["stale"] is None


def test_what_is_exported_is_what_arrives(state: Home, tmp_path: Path, pinner: Pinner) -> None:
    one = stored(state)
    target = tmp_path / "out.tar"
    assert pinner("records", "export", one.short, target).code == 0
    assert pinner("records", "export", one.short, target).code == 2, "nothing is overwritten"
    export_record(one, tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == target.read_bytes()
    other = Home(tmp_path / "other")
    arrived = import_record(target, other)
    assert (arrived.id, arrived.name, arrived.is_new) == (one.id, one.name, True)
    assert damage(arrived) == []
    assert not import_record(target, other).is_new
    said = pinner.json("records", "import", target)
    assert (said.code, said.data["new"]) == (0, False)


def tampered(
    source: Path, target: Path, change: Callable[[tarfile.TarInfo, bytes], list[tuple[str, bytes]]]
) -> Path:
    """The archive with each file given through `change`."""
    with tarfile.open(source) as old, tarfile.open(target, "w") as new:
        for info in old:
            stream = old.extractfile(info)
            assert stream is not None
            for name, data in change(info, stream.read()):
                made = tarfile.TarInfo(name)
                made.size = len(data)
                new.addfile(made, io.BytesIO(data))
    return target


def test_nothing_is_believed_on_arrival(state: Home, tmp_path: Path) -> None:
    one = stored(state)
    good = export_record(one, tmp_path / "good.tar")
    other = Home(tmp_path / "other")

    def changes(pick: str, to: Callable[[str, bytes], list[tuple[str, bytes]]]) -> Path:
        return tampered(
            good,
            tmp_path / "bad.tar",
            lambda info, data: to(info.name, data) if info.name.endswith(pick) else [(info.name, data)],
        )

    cases: list[tuple[Callable[[], Path], str]] = [
        (lambda: changes("tiny.lock", lambda name, data: [(name, data + b"#")]), "tiny.lock has been changed"),
        (lambda: changes("tiny.lock", lambda _name, _data: []), "tiny.lock is missing"),
        (lambda: changes("tiny.lock", lambda name, data: [(name, data), (name, data)]), "twice"),
        (lambda: changes("tiny.lock", lambda name, data: [(name, data), ("../../x", b"")]), "does not name"),
        (lambda: changes("tiny.lock", lambda name, data: [(name, data), (f"{one.name}/x", b"")]), "does not name"),
        (lambda: changes("record.json", lambda name, data: [(name, data.replace(b"100.0", b"900.0"))]), "changed"),
        (lambda: changes("record.json", lambda _name, _data: []), "does not begin"),
    ]
    for make, sentence in cases:
        with pytest.raises(RecordError, match=sentence):
            import_record(make(), other)
        assert names(other) == [], sentence
    with tarfile.open(tmp_path / "link.tar", "w") as new, tarfile.open(good) as old:
        first = next(iter(old))
        new.addfile(first, old.extractfile(first))
        link = tarfile.TarInfo(f"{one.name}/deployment/tiny.lock")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        new.addfile(link)
    with pytest.raises(RecordError, match="plain file"):
        import_record(tmp_path / "link.tar", other)
    data = good.read_bytes()
    # What follows the last file is padding.
    for length in range(0, len(data.rstrip(b"\0")), 1111):
        (tmp_path / "cut.tar").write_bytes(data[:length])
        with pytest.raises(RecordError):
            import_record(tmp_path / "cut.tar", other)
    assert names(other) == []


def test_what_is_here_and_damaged_is_not_overwritten(state: Home, tmp_path: Path, pinner: Pinner) -> None:
    one = stored(state)
    target = export_record(one, tmp_path)
    rewrite(one.path / "deployment/tiny.lock", b"mine")
    said = pinner("records", "import", target)
    assert (said.code, "damaged" in said.err) == (2, True)
    assert (one.path / "deployment/tiny.lock").read_bytes() == b"mine"


def test_an_old_log_becomes_a_foreign_record(tmp_path: Path, pinner: Pinner) -> None:
    log = tmp_path / "last week.log"
    line = (
        "[2026-11-23 10:00:{:02}] Decode batch, #running-req: 1, #token: 9, token usage: 0.00, accept len: 1.79, "
    )
    line += "accept rate: 0.26, cuda graph: True, gen throughput (token/s): 94.00, #queue-req: 0\n"
    log.write_text("".join(line.format(second) for second in range(5)))
    said = pinner.json("records", "import", log)
    assert (said.code, said.data["new"]) == (0, True)
    assert not pinner.json("records", "import", log).data["new"]
    shown = pinner.json("records", "show", said.data["record"]["id"][:8]).data
    assert (shown["origin"], shown["deployment"], shown["stale"]) == ("foreign", "last-week", None)
    assert shown["loads"][0]["metrics"]["verify_step_ms"] == pytest.approx(19.04, abs=0.01)
    assert "foreign" in pinner("records").out
    packed = tmp_path / "x.log.gz"
    packed.write_bytes(subprocess.run(["gzip", "-c", log], capture_output=True, check=True).stdout)
    assert pinner.json("records", "import", packed, "--deployment", "kimi").code == 0
    packed.write_bytes(packed.read_bytes()[:-20])
    assert pinner("records", "import", packed).code == 2


def test_a_result_file_becomes_a_foreign_record(tmp_path: Path, pinner: Pinner) -> None:
    path = tmp_path / "sglang_1123.jsonl"
    row = {"backend": "sglang", "max_concurrency": 4, "duration": 2.0, "completed": 8, "output_throughput": 50.5}
    path.write_text(json.dumps(row) + "\n")
    said = pinner.json("records", "import", path, "--deployment", "kimi", "--ended", "2026-11-23T10:00")
    shown = pinner("records", "show", said.data["record"]["id"])
    assert "2026-11-23 09:59 to 10:00 UTC" in shown.out
    assert "50.50" in shown.out
    assert pinner("records", "import", path, "--kind", "sglang-log").code == 2
    assert pinner("records", "import", path, "--deployment", "../x").code == 2


@pytest.mark.parametrize("name", ["missing", ".", "binary"])
def test_what_is_nothing_of_the_kind_is_refused(tmp_path: Path, pinner: Pinner, name: str) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 10)
    said = pinner("records", "import", tmp_path / name)
    assert (said.code, str(tmp_path) in said.err) == (2, True)


def test_the_files_of_a_deployment(tmp_path: Path) -> None:
    """A real deployment loads again from what a record holds of it."""
    from pinner.deploy.load import load_manifest  # noqa: PLC0415
    from pinner.deploy.locks import load_lock  # noqa: PLC0415
    from pinner.deploy.resolve import lock  # noqa: PLC0415
    from tests import tiny  # noqa: PLC0415

    deployment = load_manifest(tiny.deployment(tmp_path / "d"))
    lock(deployment, Home(tmp_path / "pinner"), say=lambda _text: None)
    found = deployment_files(deployment, load_lock(deployment))
    one = store(record(manifest=str(deployment.path)), found, Home(tmp_path / "pinner"))
    assert moved(one) == ()
    again = load_manifest(one.path / one.record.manifest_file)
    assert load_lock(again) == load_lock(deployment)
