"""Metadata of installed distributions: read as evidence, whatever it holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinner.probes.distributions import describe_origin, owners, read_distributions

SITE = "lib/python3.11/site-packages"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    place = tmp_path / SITE
    place.mkdir(parents=True)
    return place


def put(site: Path, name: str, record: str | bytes) -> Path:
    info = site / f"{name}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "RECORD").write_bytes(record.encode() if isinstance(record, str) else record)
    return info


def test_records(tmp_path: Path, site: Path) -> None:
    record = (
        '"odd, name.py",sha256=LCa0a2j_xo_5m0U8HTBBNBNCLXBkg7-g-YpeiGJm564,3\n'
        "pkg/__pycache__/a.cpython-311.pyc,,\n"
        "../../../bin/tool,md5=x,3\n"
        "../../../../etc/passwd,,\n"
        "/etc/shadow,,\n"
        "pkg/bad.py,sha256=*,1\n"
    )
    info = put(site, "Some_Pkg-1.0", record)
    (info / "uv_cache.json").write_text("{}")
    (one,) = read_distributions(tmp_path, [site])
    assert (one.title, one.origin) == ("some-pkg 1.0", "")
    assert one.files == {
        f"{SITE}/odd, name.py": "sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
        "bin/tool": None,
        f"{SITE}/pkg/bad.py": None,
        f"{SITE}/Some_Pkg-1.0.dist-info/RECORD": None,
        f"{SITE}/Some_Pkg-1.0.dist-info/uv_cache.json": None,
    }
    assert one.outside == ("../../../../etc/passwd", "/etc/shadow")
    assert owners([one])["bin/tool"] is one


def test_two_distributions_of_one_name(tmp_path: Path, site: Path) -> None:
    put(site, "pkg-1.0", "")
    put(site, "pkg-2.0", "")
    assert [one.name for one in read_distributions(tmp_path, [site])] == ["pkg==1.0", "pkg==2.0"]


def test_odd_directories(tmp_path: Path, site: Path) -> None:
    (site / "no-record-1.dist-info").mkdir()
    (site / os.fsdecode(b"\xff-1.dist-info")).mkdir()
    (site / "file-1.dist-info").touch()
    os.mkfifo(site / "no-record-1.dist-info" / "RECORD")
    names = [one.name for one in read_distributions(tmp_path, [site])]
    assert len(names) == 2
    assert all(name.isascii() for name in names)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
@given(st.binary(max_size=300))
def test_no_record_is_a_crash(tmp_path: Path, data: bytes) -> None:
    site = tmp_path / SITE
    site.mkdir(parents=True, exist_ok=True)
    put(site, "pkg-1.0", data)
    assert len(read_distributions(tmp_path, [site])) == 1
    describe_origin(data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"url": "https://user:pw@h/x", "vcs_info": {"vcs": "git", "commit_id": "abc"}}', "commit abc"),
        (b'{"url": "u", "vcs_info": {"commit_id": "a"}, "subdirectory": "s"}', "commit a (subdirectory s)"),
        (b'{"url": "file:///x", "dir_info": {"editable": true}}', "a local directory"),
        (b'{"url": "https://h/x.whl", "archive_info": {}}', "an archive"),
        (b"[]", "direct_url.json is not readable"),
    ],
)
def test_origins(data: bytes, said: str) -> None:
    assert describe_origin(data) == said
