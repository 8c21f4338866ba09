"""How two locks differ, and in which order that is told."""

from __future__ import annotations

import msgspec
import pytest

from pinner.explain import machine
from pinner.explain.diff import of_sides
from pinner.explain.likelihood import Rank, is_kernel, rank_of
from pinner.explain.pins import differences, package_differences, packages
from pinner.explain.sides import Side
from pinner.host.home import Home
from pinner.model.facts import ABSENT, Difference, Unknown
from pinner.model.lock import DraftPin, EnvironmentPin, FilePin, Lock, PythonPin
from tests.records import GPUS, engine, lock, pylock


def named(found: list[Difference]) -> dict[str, tuple[object, object]]:
    return {item.name: (item.pinned, item.observed) for item in found}


def draft(steps: int = 3, sha256: str = "sha256:dd") -> DraftPin:
    return DraftPin(
        path="draft",
        files=(FilePin(path="model.safetensors", size=9, sha256=sha256),),
        algorithm="EAGLE3",
        num_steps=steps,
    )


def test_equal_locks_do_not_differ() -> None:
    assert differences(lock(), lock()) == []


def test_what_only_led_to_the_pins_is_no_difference() -> None:
    other = lock(
        manifest="sha256:" + "9" * 64,
        python=PythonPin(
            version="3.11", patch_level="3.11.7", pylock="sha256:" + "2" * 64, indexes=("https://x",)
        ),
    )
    assert differences(lock(), other) == []


def test_arguments_flag_by_flag() -> None:
    before = lock(engine=engine(argv="--tp-size 8 --enable-metrics --cuda-graph-bs 1 2 4"))
    after = lock(engine=engine(argv="--tp-size 4 --cuda-graph-bs 1 2 8 --attention-backend fa3"))
    assert named(differences(before, after)) == {
        "arguments.tp-size": ("8", "4"),
        "arguments.enable-metrics": (True, ABSENT),
        "arguments.cuda-graph-bs": ("1 2 4", "1 2 8"),
        "arguments.attention-backend": (ABSENT, "fa3"),
    }


def test_draft_environment_and_files() -> None:
    before = lock(draft=draft())
    after = lock(
        draft=draft(steps=2, sha256="sha256:ee"),
        env=EnvironmentPin(set={"NCCL_PROTO": "LL128", "NCCL_ALGO": "Ring"}),
    )
    assert named(differences(before, after)) == {
        "draft.model.safetensors": ("sha256:dd", "sha256:ee"),
        "draft.num-steps": (3, 2),
        "environment.NCCL_PROTO": ("Simple", "LL128"),
        "environment.NCCL_ALGO": (ABSENT, "Ring"),
        "environment.HF_TOKEN": ("HF_TOKEN", ABSENT),
    }


def test_a_tree_that_only_follows_from_the_commit_is_not_told_twice() -> None:
    assert list(named(differences(lock(), lock(engine=engine("b" * 40))))) == ["source.commit"]


def test_packages_step_by_step() -> None:
    before, after = pylock(torch="2.9.0", numpy="2.3.5", left="1.0"), pylock(torch="2.9.1", numpy="2.3.5", new="2")
    assert named(package_differences(before, after)) == {
        "python.torch": ("2.9.0", "2.9.1"),
        "python.left": ("1.0", ABSENT),
        "python.new": (ABSENT, "2"),
    }
    rebuilt = package_differences(
        {"sgl-kernel": ("0.3", frozenset({"sha256:a"}))}, {"sgl-kernel": ("0.3", frozenset({"sha256:b"}))}
    )
    assert "built or published anew" in rebuilt[0].note
    one_more = {"sgl-kernel": ("0.3", frozenset({"sha256:a", "sha256:c"}))}
    assert package_differences({"sgl-kernel": ("0.3", frozenset({"sha256:a"}))}, one_more) == []


def test_packages_of_a_pylock() -> None:
    data = {
        "packages": [
            {"name": "torch", "version": "2.9.1", "wheels": [{"name": "t.whl", "hashes": {"sha256": "aa"}}]},
            {"name": "kernel", "vcs": {"commit-id": "f00"}},
        ]
    }
    assert packages(data) == {"torch": ("2.9.1", frozenset({"aa"})), "kernel": ("f00", frozenset())}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("torch", True),
        ("nvidia-nccl-cu12", True),
        ("flashinfer-python", True),
        ("lib/python3.11/site-packages/triton/compiler.py", True),
        ("lib/python3.11/site-packages/sgl_kernel-0.3.18.dist-info/RECORD", True),
        ("lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2", True),
        ("fastapi", False),
        ("torchvision", False),
        ("", False),
    ],
)
def test_which_packages_compute(key: str, expected: bool) -> None:
    assert is_kernel(key) is expected


def test_every_aspect_of_a_check_has_its_rank() -> None:
    from pinner.probes import PROBES  # noqa: PLC0415

    for aspect in PROBES:
        assert rank_of(aspect, "anything") is not Rank.OTHER, aspect
    assert rank_of("model", "path") is Rank.OTHER


def test_the_likeliest_cause_comes_first(state: Home) -> None:
    before, after = lock(draft=draft()), changed_everywhere()
    a = Side(title="A", lock=before, packages=pylock(torch="2.9.0", fastapi="1"))
    b = Side(title="B", lock=after, packages=pylock(torch="2.9.1", fastapi="2"))
    found = of_sides(a, b, state)
    assert [(item.rank, item.difference.name) for item in found.found] == [
        (Rank.SOURCE, "source.commit"),
        (Rank.KERNELS, "python.torch"),
        (Rank.DRAFT, "draft.num-steps"),
        (Rank.ARGUMENTS, "arguments.tp-size"),
        (Rank.ENVIRONMENT, "environment.NCCL_PROTO"),
        (Rank.PACKAGES, "python.patch-level"),
        (Rank.PACKAGES, "python.fastapi"),
        (Rank.OTHER, "serve.port"),
    ]
    assert "no mirror or checkout on this machine has both" in found.found[0].difference.evidence[0]


def changed_everywhere() -> Lock:
    return lock(
        engine=engine("b" * 40, argv="--tp-size 4 --enable-metrics"),
        python=PythonPin(version="3.11", patch_level="3.11.9", pylock="sha256:" + "2" * 64),
        draft=draft(steps=2),
        env=EnvironmentPin(set={"NCCL_PROTO": "LL"}, secret={"HF_TOKEN": "HF_TOKEN"}),
        serve=msgspec.structs.replace(lock().serve, port=30001),
    )


def test_packages_that_cannot_be_told_are_unknown(state: Home) -> None:
    other = PythonPin(version="3.11", patch_level="3.11.7", pylock="sha256:" + "2" * 64)
    a = Side(title="A", lock=lock(), packages=pylock(torch="1"))
    b = Side(title="B", lock=lock(python=other), packages=Unknown("it is gone"))
    found = of_sides(a, b, state)
    assert found.found == ()
    assert [item.name for item in found.unknown] == ["python.packages"]


def test_machines_gpu_by_gpu() -> None:
    capped = {**GPUS, "gpu.0000:03:00.0.power-limit-watts": 230.0, "driver": "580.65.06"}
    assert named(machine.differences({"hardware": GPUS}, {"hardware": capped})) == {
        "hardware.gpu.0000:03:00.0.power-limit-watts": (700.0, 230.0),
        "hardware.driver": ("570.133.20", "580.65.06"),
    }


def test_other_machines_have_other_bus_ids() -> None:
    moved = {key.replace("0000:0", "0001:1"): value for key, value in GPUS.items()}
    assert machine.differences({"hardware": GPUS}, {"hardware": moved}) == []
    weaker = {key: 600.0 if key.endswith("-watts") else value for key, value in moved.items()}
    assert named(machine.differences({"hardware": GPUS}, {"hardware": weaker})) == {
        "hardware.power-limit-watts": ("8 × 700", "8 × 600")
    }


@pytest.mark.parametrize("untold", [{"unknown": "no permission"}, {"type": "unknown", "reason": "no permission"}])
def test_what_could_not_be_told_is_never_the_same(untold: dict[str, str]) -> None:
    one = {"host": {"cpu-model": untold, "kernel": "6.8"}}
    assert not machine.is_same("kernel", machine.fact_of(untold), machine.fact_of(untold))
    other = {"host": {"cpu-model": "EPYC", "kernel": "6.8"}}
    assert [item.key for item in machine.differences(one, other)] == ["cpu-model"]
