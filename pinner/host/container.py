"""Which container pinner runs in, and of which image, as far as that can be seen from inside.

Owns the signs that container engines leave. Read-only; must not call an engine. `root` is the directory that
stands for /.
"""

from __future__ import annotations

from pathlib import Path

from pinner.model.facts import ABSENT, Fact, Unknown

# Who starts a container may tell it what it is: `docker run -e PINNER_IMAGE=repo@sha256:… -e PINNER_IMAGE_ID=…`.
# Read from its first process, so that no caller's shell can say otherwise.
IMAGE, IMAGE_ID = "PINNER_IMAGE", "PINNER_IMAGE_ID"
_SIGNS = {
    "/kubelet/pods/": "kubernetes",
    "/docker/containers/": "docker",
    "/containers/storage/": "podman",
}


def kind(root: Path) -> Fact:
    """docker, podman, kubernetes, or what systemd or LXC call it; absent outside of a container."""
    if (root / "run/.containerenv").exists():
        return "podman"
    mounts = (root / "proc/self/mountinfo").read_text()
    for sign, name in _SIGNS.items():
        if sign in mounts:
            return name
    if (root / ".dockerenv").exists():
        return "docker"
    told = root / "run/systemd/container"
    if told.exists():
        return told.read_text().strip()
    first = _first_process(root)
    return first.get("container") or ABSENT if isinstance(first, dict) else ABSENT


def image(root: Path) -> Fact:
    """The image by name, with digest where that was told."""
    return _of_image(root, IMAGE, "image")


def image_id(root: Path) -> Fact:
    """The image's id: the digest of its configuration, whatever registry it came from."""
    return _of_image(root, IMAGE_ID, "imageid")


def _of_image(root: Path, variable: str, key: str) -> Fact:
    if kind(root) == ABSENT:
        return ABSENT
    first = _first_process(root)
    if isinstance(first, dict) and first.get(variable):
        return first[variable]
    try:
        lines = (root / "run/.containerenv").read_text().splitlines()
    except FileNotFoundError:
        lines = []
    for line in lines:
        name, _, value = line.partition("=")
        if name == key and value.strip('"'):
            return value.strip('"')
    why = first.reason if isinstance(first, Unknown) else f"its first process has no {variable}"
    return Unknown(f"a container cannot see its image: start it with -e {variable}=… ({why})")


def _first_process(root: Path) -> dict[str, str] | Unknown:
    try:
        raw = (root / "proc/1/environ").read_bytes()
    except OSError as error:
        return Unknown(f"/proc/1/environ: {error.strerror}")
    pairs = [entry.partition(b"=") for entry in raw.split(b"\0")]
    return {name.decode("utf-8", "surrogateescape"): value.decode("utf-8", "replace") for name, _, value in pairs}
