"""Building an environment, beside `uv venv` with `uv pip sync`; and a `materialize` that finds all done.

    uv run python benchmarks/environment.py [PACKAGES] [MODULES] [ROUNDS]

The first part installs made-up wheels from a warm cache by hard link: with pinner's two calls of uv, and with
plain ones. What pinner does besides, which the plain pair does not, is listed step by step. The second part needs
the package index: `uv pip sync` asks it, `materialize` must not.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paired import command, paired
from uv import find_uv_bin

from pinner.deploy import materialize
from pinner.deploy.load import load_manifest
from pinner.deploy.locks import load_lock
from pinner.host import bytecode
from pinner.host.files import remove_tree
from pinner.host.home import Home
from pinner.host.uv import Uv, site_index
from pinner.probes import python_env
from tests import tiny
from tests.integration.index import make_wheel

BODY = "\n".join(f"def f{n}(a, b={n}):\n    '''Say {n}.'''\n    return [a + b * {n}, a - b]\n" for n in range(40))
ROOT = Path(__file__).parent.parent


def make_deployment(top: Path, packages: int, modules: int) -> Path:
    names = [f"made{number:03d}" for number in range(packages)]
    for name in names:
        files = {f"{name}/part{at // 15}/m{at:03d}.py": f"# {name} {at}\n{BODY}" for at in range(modules)}
        make_wheel(top / "wheels", name, "1.0", files)
    wanted = ", ".join(f'"{name}==1.0"' for name in names)
    return tiny.deployment(top / "deployment", python=f"requirements = [{wanted}]")


def pinner(*argv: object) -> None:
    line = [sys.executable, "-m", "pinner", *map(str, argv)]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def plain_install(top: Path, cache: Path, requirements: Path) -> Callable[[], None]:
    uv, env = find_uv_bin(), {**os.environ, "UV_CACHE_DIR": str(cache)}
    offline = ["--quiet", "--offline", "--no-index", "--find-links", str(top / "wheels"), "--link-mode=hardlink"]

    def run() -> None:
        venv = [uv, "venv", "--quiet", "--no-project", "--python", "3.11", str(top / "plain")]
        subprocess.run(venv, env=env, check=True)
        sync = [uv, "pip", "sync", *offline, "--python", str(top / "plain/bin/python"), str(requirements)]
        subprocess.run(sync, env=env, check=True)

    return run


def compare_installing(top: Path, packages: int, modules: int, rounds: int) -> None:
    manifest = make_deployment(top, packages, modules)
    home = Home(top / "home")
    os.environ |= {"PINNER_HOME": str(home.root), "PINNER_FIND_LINKS": str(top / "wheels")}
    pinner("lock", manifest)
    deployment = load_manifest(manifest)
    lock = load_lock(deployment)
    workspace = materialize.materialize(deployment, lock, home).workspace
    requirements = workspace.root / "requirements.txt"
    kept = Path(shutil.copy(requirements, top))
    uv = Uv(home, site=site_index(home))

    def clear() -> None:
        remove_tree(top / "ours")
        remove_tree(top / "plain")

    def ours() -> None:
        uv.create_environment(top / "ours", python="3.11")
        uv.sync(top / "ours", kept, exclude_newer=None)

    print(f"{packages} packages of {modules} modules")
    plain = plain_install(top, home.downloads, kept)
    paired("pinner's uv calls against uv venv and uv pip sync", ours, plain, limit=1.1, before=clear)
    steps = timed_steps(lambda: materialize.materialize(deployment, lock, home), workspace.root, rounds)
    total = statistics.median(sum(one.values()) for one in steps)
    print(f"materialize as a whole: {total * 1000:.0f} ms, of which")
    for name in steps[0]:
        print(f"  {statistics.median(one[name] for one in steps) * 1000:6.0f} ms  {name}")


def timed_steps(build: Callable[[], Any], root: Path, rounds: int) -> list[dict[str, float]]:
    """What each step of `build` took, in seconds."""
    now: dict[str, float] = {}

    def watch(owner: Any, name: str, title: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return real(*args, **kwargs)
            finally:
                now[title] = now.get(title, 0) + time.perf_counter() - began

        setattr(owner, name, call)

    watch(materialize.source, "export", "checking out the engine")
    watch(Uv, "find_python", "finding the interpreter")
    watch(Uv, "create_environment", "installing: uv venv")
    watch(Uv, "sync", "installing: uv pip sync")
    watch(Uv, "build_wheel", "building the engine")
    watch(Uv, "install_wheel", "installing the engine")
    watch(bytecode, "compile_trees", "compiling byte code")
    watch(python_env, "seal", "verifying RECORDs and sealing: one pass over the bytes")
    watch(materialize, "check", "looking at all of it with the probes of check")
    found = []
    for _ in range(rounds):
        remove_tree(root)
        now.clear()
        began = time.perf_counter()
        build()
        rest = time.perf_counter() - began - sum(now.values())
        found.append({**now, "all else": rest})
    return found


def compare_nothing_to_do(top: Path) -> None:
    """The quickstart, which is built already, beside uv's own ways to find that nothing is to be done."""
    os.environ |= {"PINNER_HOME": str(top / "quickstart-home"), "PINNER_FIND_LINKS": ""}
    manifest = ROOT / "deployments" / "quickstart.toml"
    pinner("materialize", manifest)
    uv, env = find_uv_bin(), {**os.environ, "UV_CACHE_DIR": str(top / "cache")}
    place = top / "synced"
    again = [uv, "venv", "--quiet", "--clear", "--no-project", "--python", "3.11", str(place)]
    sync = [uv, "pip", "sync", "--quiet", "--no-config", "--python", str(place / "bin/python")]
    pylock = str(ROOT / "deployments" / "pylock.quickstart.toml")
    subprocess.run(again, env=env, check=True)
    subprocess.run([*sync, pylock], env=env, check=True)
    ours = command([sys.executable, "-m", "pinner", "materialize", str(manifest)])
    start = command([sys.executable, "-m", "pinner", "check", "--help"])

    def fresh() -> None:
        subprocess.run(again, env=env, check=True)
        subprocess.run([*sync, "--no-cache", pylock], env=env, check=True)

    paired("materialize with nothing to do against an online uv pip sync", ours, fresh, limit=0.25)
    paired("  the start of pinner alone against the same", start, fresh)
    paired("  against uv pip sync that finds nothing to do", ours, command([*sync, pylock], env=env))
    refresh = command([*sync, "--refresh", pylock], env=env)
    paired("  against uv pip sync --refresh that finds nothing to do", ours, refresh)


def main(packages: int = 20, modules: int = 300, rounds: int = 5) -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="pinner-bench-") as name:
        compare_installing(Path(name), packages, modules, rounds)
        compare_nothing_to_do(Path(name))
        remove_tree(Path(name) / "home")
        remove_tree(Path(name) / "quickstart-home")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
