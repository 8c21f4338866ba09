"""PEP 751 locks as pinner keeps them."""

from __future__ import annotations

from typing import Any

from pinner.model.pylock import hashed_requirements, needs_site, normalized, versions


def wheel(name: str, url: str, sha256: str = "aa") -> dict[str, Any]:
    return {"name": name, "url": url, "size": 1, "hashes": {"sha256": sha256}, "upload-time": "2026-01-01"}


def pylock(*wheels: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"packages": [{"name": "pkg", "version": "1.0", "wheels": list(wheels), **more}]}


def names(data: dict[str, Any]) -> list[str]:
    return [item["name"] for package in data["packages"] for item in package.get("wheels", [])]


def test_only_wheels_that_can_be_used_stay() -> None:
    usable = [
        "pkg-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "pkg-1.0-cp311-cp311-macosx_11_0_arm64.whl",
        "pkg-1.0-cp38-abi3-manylinux2014_aarch64.whl",
        "pkg-1.0-py3-none-any.whl",
        "pkg-1.0-py2.py3-none-any.whl",
    ]
    useless = [
        "pkg-1.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        "pkg-1.0-cp311-cp311-win_amd64.whl",
        "pkg-1.0-cp311-cp311-manylinux2014_ppc64le.whl",
        "pkg-1.0-cp312-abi3-manylinux2014_x86_64.whl",
        "pkg-1.0-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl",
    ]
    every = [wheel(name, f"https://index/{name}") for name in (*usable, *useless)]
    assert names(normalized(pylock(*every), python="3.11", site=())) == sorted(usable)


def test_packages_of_other_platforms_and_pythons_go() -> None:
    for marker, stays in (
        ("sys_platform == 'win32'", False),
        ("sys_platform == 'linux' and platform_machine == 'aarch64'", True),
        ("python_full_version >= '3.12'", False),
        ("python_full_version >= '3.11'", True),
    ):
        data = pylock(wheel("pkg-1.0-py3-none-any.whl", "https://index/x"), marker=marker)
        assert bool(normalized(data, python="3.11", site=())["packages"]) is stays, marker


def test_a_site_leaves_no_address_behind() -> None:
    found = wheel("pkg-1.0-py3-none-any.whl", "file:///wheels/pkg-1.0-py3-none-any.whl")
    data = normalized(pylock(found), python="3.11", site=("file:///wheels",))
    assert "wheels/" not in str(data)
    assert data["packages"][0]["wheels"][0]["path"] == "pkg-1.0-py3-none-any.whl"
    assert needs_site(data)


def test_a_known_address_survives_a_mirror() -> None:
    first = normalized(
        pylock(wheel("pkg-1.0-py3-none-any.whl", "https://index/pkg-1.0-py3-none-any.whl")), python="3.11", site=()
    )
    mirrored = pylock(wheel("pkg-1.0-py3-none-any.whl", "http://mirror:8080/pkg-1.0-py3-none-any.whl"))
    assert normalized(mirrored, python="3.11", site=("",), previous=first) == first
    other = pylock(wheel("pkg-1.0-py3-none-any.whl", "http://mirror:8080/pkg-1.0-py3-none-any.whl", "bb"))
    assert "mirror" not in str(normalized(other, python="3.11", site=("",), previous=first))


def test_credentials_never_stay() -> None:
    data = pylock(wheel("pkg-1.0-py3-none-any.whl", "https://user:secret@index/pkg-1.0-py3-none-any.whl"))
    text = str(normalized(data, python="3.11", site=()))
    assert "secret" not in text
    assert "https://index/pkg" in text


def test_hashed_requirements_bind_bytes() -> None:
    data = normalized(
        pylock(wheel("pkg-1.0-py3-none-any.whl", "https://index/x"), marker="sys_platform == 'linux'"),
        python="3.11",
        site=(),
    )
    assert hashed_requirements(data) == "pkg==1.0 ; sys_platform == 'linux' --hash=sha256:aa\n"
    assert versions(data) == {"pkg": "1.0"}


def test_packages_from_git_keep_commit_and_subdirectory() -> None:
    vcs = {"type": "git", "url": "https://u:p@host/r", "commit-id": "c" * 40, "subdirectory": "s"}
    data = normalized({"packages": [{"name": "gpk", "vcs": vcs}]}, python="3.11", site=())
    assert hashed_requirements(data) == f"gpk @ git+https://host/r@{'c' * 40}#subdirectory=s\n"
    assert versions(data) == {"gpk": "c" * 40}
