"""What the processes of a run show: arguments and environment, each worker read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pinner.host.home import Home
from pinner.host.memory import DigestMemory
from pinner.host.procfs import ProcessInfo, Unreadable
from pinner.model.facts import ABSENT, Unknown
from pinner.model.lock import EnginePin, EnvironmentPin, Lock, PythonPin, ServePin, SourcePin, WeightsPin
from pinner.probes import arguments, environment
from pinner.probes.base import LiveScene, Scene

LAUNCHED = {"NCCL_NVLS_ENABLE": "1", "PATH": "/bin", "TOKEN": "s3cret"}
ARGV = ("/env/bin/python", "-m", "pocket.launch_server", "--port", "30000", "--enable-metrics", "--steps", "3")


def process(pid: int, title: str, argv: tuple[str, ...] = ()) -> ProcessInfo:
    return ProcessInfo(
        pid=pid,
        ppid=1,
        session=1,
        start_ticks=1,
        state="S",
        comm=title[:15],
        title=title,
        argv=argv,
        retitled=not argv,
        exe=None,
    )


def scene(tmp_path: Path) -> Scene:
    lock = Lock(
        version=1,
        requires_pinner="0.1.0",
        manifest="sha256:00",
        engine=EnginePin(kind="pocket", source=SourcePin(type="git"), argv=ARGV[1:]),
        python=PythonPin(version="3.11", patch_level="3.11.7"),
        model=WeightsPin(path="model", files=()),
        env=EnvironmentPin(set={"NCCL_NVLS_ENABLE": "1"}, secret={"TOKEN": "TOKEN"}),
        serve=ServePin(host="127.0.0.1", port=30000, start_timeout_s=1, generate_timeout_s=1, stop_timeout_s=1),
    )
    home = Home(tmp_path)
    return Scene(lock=lock, directory=tmp_path, home=home, memory=DigestMemory(None), workspace=None)


def live(
    tmp_path: Path,
    environments: Mapping[int, dict[str, str] | Unreadable | None],
    *,
    argv: tuple[str, ...] = ARGV,
    account: Mapping[str, object] | None = None,
) -> LiveScene:
    processes = [process(1, "python -m pocket", argv), process(2, "pocket::scheduler_TP0")]
    return LiveScene(
        scene=scene(tmp_path),
        processes=processes,
        argv=ARGV,
        env=LAUNCHED,
        environ=lambda pid: environments[pid],
        account=account or {},
    )


def judge(probe: object, scene_: LiveScene) -> tuple[dict[str, object], dict[str, object], tuple[str, ...]]:
    observation = probe.observe_live(scene_)  # type: ignore[attr-defined]
    differences, unknown = probe.compare(scene_.scene.lock, observation)  # type: ignore[attr-defined]
    return (
        {item.key: item for item in differences},
        {item.key: item for item in unknown},
        observation.notes,
    )


def test_equal_environments_are_clean(tmp_path: Path) -> None:
    assert judge(environment, live(tmp_path, {1: LAUNCHED, 2: LAUNCHED})) == ({}, {}, ())


def test_h14_a_worker_with_another_value_is_drift(tmp_path: Path) -> None:
    """Case H14: the parent still shows what was pinned, the worker does not."""
    worker = {**LAUNCHED, "NCCL_NVLS_ENABLE": "0"}
    differences, unknown, _ = judge(environment, live(tmp_path, {1: LAUNCHED, 2: worker}))
    item = differences["NCCL_NVLS_ENABLE"]
    assert (item.pinned, item.observed) == ("1", "0")  # type: ignore[attr-defined]
    assert "pid 2 (pocket::scheduler_TP0) has 0" in item.evidence[0]  # type: ignore[attr-defined]
    assert not unknown


def test_h14_what_the_engine_sets_by_itself_is_a_note(tmp_path: Path) -> None:
    worker = {**LAUNCHED, "NCCL_CUMEM_ENABLE": "0", "NCCL_ALGO": "Tree", "X_API_KEY": "s3cret"}
    differences, unknown, notes = judge(environment, live(tmp_path, {1: LAUNCHED, 2: worker}))
    assert not differences and not unknown
    assert notes == (
        "set by engine: NCCL_CUMEM_ENABLE=0",
        "set by engine, though it is not known to: NCCL_ALGO=Tree, X_API_KEY=(hidden)",
    )


def test_h14_an_unreadable_worker_is_unknown(tmp_path: Path) -> None:
    seen = live(tmp_path, {1: LAUNCHED, 2: Unreadable("blanked by setproctitle")})
    differences, unknown, _ = judge(environment, seen)
    assert not differences
    assert "blanked" in str(unknown["of pocket::scheduler_TP0"].observed)  # type: ignore[attr-defined]


def test_a_variable_that_nobody_listed_is_drift_in_the_main_process(tmp_path: Path) -> None:
    main = {**LAUNCHED, "NCCL_PROTO": "LL"}
    differences, _, _ = judge(environment, live(tmp_path, {1: main, 2: main}))
    assert differences["NCCL_PROTO"].pinned == ABSENT  # type: ignore[attr-defined]


def test_a_lost_variable_is_drift(tmp_path: Path) -> None:
    worker = {name: value for name, value in LAUNCHED.items() if name != "NCCL_NVLS_ENABLE"}
    differences, _, _ = judge(environment, live(tmp_path, {1: LAUNCHED, 2: worker}))
    assert differences["NCCL_NVLS_ENABLE"].observed == ABSENT  # type: ignore[attr-defined]


def test_secrets_are_compared_and_never_shown(tmp_path: Path) -> None:
    worker = {**LAUNCHED, "TOKEN": "other-s3cret"}
    differences, _, _ = judge(environment, live(tmp_path, {1: LAUNCHED, 2: worker}))
    assert "s3cret" not in str(differences)
    assert "hidden" in str(differences["TOKEN"])


def test_a_process_that_has_ended_is_no_finding(tmp_path: Path) -> None:
    assert judge(environment, live(tmp_path, {1: LAUNCHED, 2: None})) == ({}, {}, ())


def test_equal_arguments_are_clean(tmp_path: Path) -> None:
    seen = live(tmp_path, {1: LAUNCHED, 2: LAUNCHED}, account={"port": 30000, "enable_metrics": True, "steps": 3})
    assert judge(arguments, seen) == ({}, {}, ())


def test_each_argument_that_differs_is_named(tmp_path: Path) -> None:
    argv = (*ARGV[:-1], "5", "--extra")
    differences, _, _ = judge(arguments, live(tmp_path, {}, argv=argv))
    assert {key: (item.pinned, item.observed) for key, item in differences.items()} == {  # type: ignore[attr-defined]
        "--steps": ("3", "5"),
        "--extra": (ABSENT, "true"),
    }


def test_the_servers_own_account_is_compared(tmp_path: Path) -> None:
    differences, _, _ = judge(arguments, live(tmp_path, {}, account={"steps": 5, "unrelated": 1}))
    assert list(differences) == ["server:--steps"]


@pytest.mark.parametrize("argv", [(), ("pocket-main",)])
def test_an_overwritten_command_line_is_unknown(tmp_path: Path, argv: tuple[str, ...]) -> None:
    differences, unknown, _ = judge(arguments, live(tmp_path, {}, argv=argv))
    assert not differences
    assert isinstance(unknown["command-line"].observed, Unknown)  # type: ignore[attr-defined]
