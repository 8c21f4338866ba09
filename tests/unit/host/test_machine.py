"""Facts of a machine, from trees that look like /proc and /sys; the real ones only as far as they must agree."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from pinner.host import cgroup, machine
from pinner.host.machine import Place
from pinner.model.facts import ABSENT, Unknown
from pinner.model.hostfacts import HOST_FACTS, UNLIMITED

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max open files            {soft}                 {hard}              files
Max locked memory         unlimited            unlimited            bytes
"""
V2 = "30 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    return root


def test_every_fact_has_a_reader_and_the_real_machine_answers() -> None:
    assert machine.READERS.keys() == HOST_FACTS.keys()
    told = machine.read(HOST_FACTS)
    assert told["kernel"] == os.uname().release
    assert told["architecture"] == os.uname().machine
    assert told["cpu-affinity-count"] == len(os.sched_getaffinity(0))
    assert told["open-files-hard"] in (resource.getrlimit(resource.RLIMIT_NOFILE)[1], UNLIMITED)
    assert told["memory-total-bytes"] > told["memory-available-bytes"] > 0
    assert told["cpu-count"] >= 1


def test_nothing_is_read_that_was_not_asked_for(tmp_path: Path) -> None:
    assert machine.read([], Place(tmp_path)) == {}
    assert machine.read(["kernel"], Place(tree(tmp_path, {"proc/sys/kernel/osrelease": "6.8.0-40\n"}))) == {
        "kernel": "6.8.0-40"
    }


def test_without_proc_everything_is_unknown(tmp_path: Path) -> None:
    assert isinstance(machine.read(["kernel"], Place(tmp_path))["kernel"], Unknown)


@pytest.mark.parametrize("key", sorted(HOST_FACTS))
def test_an_empty_machine_is_never_a_number(tmp_path: Path, key: str) -> None:
    """Absent or unknown: what is not there is never 0 and never "unlimited"."""
    fact = machine.read([key], Place(tree(tmp_path, {})))[key]
    assert fact == ABSENT or isinstance(fact, Unknown) or key == "architecture"


@pytest.mark.parametrize(
    "text", ["", "\n", "what is this\n", "MemTotal: many\n"], ids=["empty", "blank", "words", "no-number"]
)
def test_what_is_not_understood_is_unknown(tmp_path: Path, text: str) -> None:
    root = tree(
        tmp_path,
        {
            "proc/meminfo": text,
            "proc/self/limits": text,
            "proc/self/status": text,
            "proc/sys/kernel/numa_balancing": text,
            "sys/devices/system/cpu/online": text,
            "sys/kernel/mm/transparent_hugepage/enabled": text,
            "proc/driver/nvidia/version": text,
        },
    )
    keys = (
        "memory-total-bytes",
        "swap-total-bytes",
        "open-files",
        "cpu-affinity-count",
        "numa-balancing",
        "cpu-count",
        "transparent-huge-pages",
        "nvidia-module",
    )
    for key, fact in machine.read(keys, Place(root)).items():
        assert isinstance(fact, Unknown), key


def test_processors(tmp_path: Path) -> None:
    cpu = "sys/devices/system/cpu"
    root = tree(
        tmp_path,
        {
            f"{cpu}/online": "0-3,8,10-11\n",
            f"{cpu}/cpufreq/policy0/scaling_governor": "performance\n",
            f"{cpu}/cpufreq/policy1/scaling_governor": "performance\n",
            "proc/self/status": "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-1,3\n",
            "proc/cpuinfo": "model name\t: AMD EPYC 9554\nflags\t: fpu sse\n\nmodel name\t: AMD EPYC 9554\n",
            "sys/devices/system/node/online": "0-1\n",
            "proc/sys/kernel/numa_balancing": "1\n",
        },
    )
    told = machine.read(HOST_FACTS, Place(root))
    assert (told["cpu-count"], told["cpu-affinity-count"], told["numa-nodes"]) == (7, 3, 2)
    assert (told["cpu-model"], told["cpu-governor"]) == ("AMD EPYC 9554", "performance")
    assert (told["hypervisor"], told["numa-balancing"]) == (False, 1)
    tree(root, {f"{cpu}/cpufreq/policy1/scaling_governor": "powersave\n"})
    assert machine.read(["cpu-governor"], Place(root))["cpu-governor"] == "mixed: performance (1), powersave (1)"


def test_an_arm_processor_is_named_by_its_numbers(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/cpuinfo": "CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"})
    told = machine.read(("cpu-model", "hypervisor"), Place(root))
    assert told["cpu-model"] == "implementer 0x41 part 0xd4f"
    assert isinstance(told["hypervisor"], Unknown)


def test_memory_and_pages(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 600 kB\nSwapTotal: 0 kB\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "3\n",
            "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "1\n",
        },
    )
    told = machine.read(HOST_FACTS, Place(root))
    assert (told["memory-total-bytes"], told["memory-available-bytes"]) == (1024000, 614400)
    assert (told["swap-total-bytes"], told["transparent-huge-pages"]) == (0, "madvise")
    assert told["huge-pages-bytes"] == 3 * 2048 * 1024 + 2**30


@pytest.mark.parametrize(
    ("soft", "hard", "given"),
    [
        ("1024", "524288", 65535),
        ("1024", "4096", 4096),
        ("100000", "524288", 100000),
        ("1024", "unlimited", 65535),
        ("unlimited", "unlimited", UNLIMITED),
    ],
)
def test_open_files_are_those_that_an_engine_gets(tmp_path: Path, soft: str, hard: str, given: object) -> None:
    root = tree(tmp_path, {"proc/self/limits": LIMITS.format(soft=soft, hard=hard)})
    assert machine.read(["open-files"], Place(root))["open-files"] == given
    tree(root, {"proc/7/limits": LIMITS.format(soft=soft, hard=hard)})
    own = machine.read(["open-files"], Place(root, 7))["open-files"]
    assert str(own) == soft, "a process that runs has what it has"


def test_a_process_that_has_ended_has_no_limits(tmp_path: Path) -> None:
    told = machine.read(("open-files", "cgroup-cpus"), Place(tree(tmp_path, {}), 7))
    assert told == {"open-files": Unknown("pid 7 has ended"), "cgroup-cpus": Unknown("pid 7 has ended")}


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  590.48.01  Mon Nov 10 22:12:33 UTC 2025\n", "590.48.01"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (root@)\n",
            "570.86.15",
        ),
        ("NVRM version: NVIDIA UNIX aarch64 Kernel Module  520.61.05  Thu Sep\nGCC version: 12\n", "520.61.05"),
    ],
)
def test_the_driver_file(tmp_path: Path, line: str, version: str) -> None:
    root = tree(tmp_path, {"proc/driver/nvidia/version": line})
    assert machine.read(["nvidia-module"], Place(root))["nvidia-module"] == version


def test_gpu_models_are_told_without_a_library(tmp_path: Path) -> None:
    assert machine.nvidia_models(tmp_path) == []
    gpus = "proc/driver/nvidia/gpus"
    tree(
        tmp_path,
        {
            f"{gpus}/0000:41:00.0/information": "Model: \t\t NVIDIA H200\nIRQ: 12\n",
            f"{gpus}/0000:01:00.0/information": "Model: \t\t NVIDIA A100\n",
        },
    )
    assert machine.nvidia_models(tmp_path) == ["NVIDIA A100", "NVIDIA H200"]


def test_limits_of_version_2_are_the_tightest_on_the_way(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
            "sys/fs/cgroup/a/memory.max": "1000000\n",
            "sys/fs/cgroup/a/memory.current": "900000\n",
            "sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 300000\n",
            "sys/fs/cgroup/a/b/memory.max": "2000000\n",
            "sys/fs/cgroup/a/b/memory.current": "100\n",
        },
    )
    assert cgroup.cpus(root=root) == 1.5
    assert cgroup.memory_bytes(root=root) == 1000000
    assert cgroup.memory_left_bytes(root=root) == 400000


def test_limits_of_version_1(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "3:memory:/docker/1f\n2:cpu,cpuacct:/docker/1f\n",
            "proc/self/mountinfo": (
                "31 23 0:28 /docker/1f /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                "32 23 0:29 /docker/1f /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
            ),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.stat": "cache 0\nhierarchical_memory_limit 5000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cgroup.cpus(root=root) == 2.0
    assert cgroup.memory_bytes(root=root) == 5000, "a limit above the mount counts"
    tree(
        root,
        {
            "sys/fs/cgroup/memory/memory.stat": "hierarchical_memory_limit 9223372036854771712\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        },
    )
    assert (cgroup.cpus(root=root), cgroup.memory_bytes(root=root)) == (UNLIMITED, UNLIMITED)


def test_on_a_hybrid_machine_each_controller_is_read_where_it_is(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n0::/job\n",
            "proc/self/mountinfo": (
                "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
            ),
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4096\n",
            "sys/fs/cgroup/unified/job/memory.max": "1\n",
            "sys/fs/cgroup/unified/job/cpu.max": "50000 100000\n",
        },
    )
    assert cgroup.memory_bytes(root=root) == 4096
    assert cgroup.cpus(root=root) == 0.5


def test_a_group_that_is_not_mounted_is_unknown(tmp_path: Path) -> None:
    for own in ("0::/a\n", "0::/../../b\n", "5:cpu:/a\n0::/\n"):
        files = {"proc/self/cgroup": own, "proc/self/mountinfo": "1 2 0:1 / / rw - ext4 /dev/sda rw\n"}
        assert isinstance(cgroup.cpus(root=tree(tmp_path, files)), Unknown)
    files = {"proc/self/cgroup": "5:cpu:/a\n0::/\n", "proc/self/mountinfo": V2, "sys/fs/cgroup/cpu.max": "max 1\n"}
    assert isinstance(cgroup.cpus(root=tree(tmp_path, files)), Unknown), "version 1 has it, and cannot be seen"


def test_a_mount_point_with_a_blank(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": V2.replace("/sys/fs/cgroup", "/my\\040groups"),
        "my groups/cpu.max": "300000 100000\n",
    }
    assert cgroup.cpus(root=tree(tmp_path, files)) == 3.0


def test_containers(tmp_path: Path) -> None:
    mounts = "proc/self/mountinfo"
    kinds = {
        "none": ({mounts: ""}, ABSENT),
        "docker": (
            {mounts: "1 2 0:1 /var/lib/docker/containers/9f/hosts /etc/hosts rw - ext4 /dev/x rw"},
            "docker",
        ),
        "old-docker": ({mounts: "", ".dockerenv": ""}, "docker"),
        "podman": ({mounts: "", "run/.containerenv": 'engine="podman-4.9"\n'}, "podman"),
        "kubernetes": (
            {mounts: "1 2 0:1 /var/lib/kubelet/pods/1/etc-hosts /etc/hosts rw - ext4 x rw"},
            "kubernetes",
        ),
        "nspawn": ({mounts: "", "run/systemd/container": "systemd-nspawn\n"}, "systemd-nspawn"),
        "lxc": ({mounts: "", "proc/1/environ": "container=lxc\0"}, "lxc"),
    }
    for name, (files, kind) in kinds.items():
        told = machine.read(["container"], Place(tree(tmp_path / name, files)))
        assert told["container"] == kind, name


def test_the_image_is_told_by_the_first_process_or_by_podman(tmp_path: Path) -> None:
    keys = ("container-image", "container-image-id")
    outside = tree(tmp_path / "outside", {"proc/self/mountinfo": "", "proc/1/environ": "PINNER_IMAGE=x\0"})
    assert machine.read(keys, Place(outside)) == dict.fromkeys(keys, ABSENT)
    docker = {".dockerenv": "", "proc/self/mountinfo": "", "proc/1/environ": "PATH=/bin\0"}
    silent = machine.read(keys, Place(tree(tmp_path / "silent", docker)))
    assert "PINNER_IMAGE" in str(silent["container-image"]) and isinstance(silent["container-image"], Unknown)
    told = docker | {"proc/1/environ": "PINNER_IMAGE=r/p@sha256:ab\0PINNER_IMAGE_ID=sha256:cd\0"}
    assert machine.read(keys, Place(tree(tmp_path / "told", told))) == {
        "container-image": "r/p@sha256:ab",
        "container-image-id": "sha256:cd",
    }
    podman = {"run/.containerenv": 'image="r/p:1"\nimageid="cd"\n', "proc/self/mountinfo": ""}
    assert machine.read(keys, Place(tree(tmp_path / "podman", podman))) == {
        "container-image": "r/p:1",
        "container-image-id": "cd",
    }


def test_what_quotas_have_held_up_is_told_of_the_group_that_they_held_up_most(tmp_path: Path) -> None:
    second = tree(
        tmp_path / "v2",
        {
            "proc/self/cgroup": "0::/a/b\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/a/cpu.stat": "usage_usec 9\nnr_periods 50\nnr_throttled 7\nthrottled_usec 2500000\n",
            "sys/fs/cgroup/a/b/cpu.stat": "usage_usec 9\n",
        },
    )
    assert cgroup.throttling(root=second) == (7, 2.5)
    first = tree(
        tmp_path / "v1",
        {
            "proc/self/cgroup": "2:cpu,cpuacct:/docker/1f\n",
            "proc/self/mountinfo": "32 23 0:29 /docker/1f /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
            "sys/fs/cgroup/cpu/cpu.stat": "nr_periods 3\nnr_throttled 2\nthrottled_time 1500000000\n",
        },
    )
    assert cgroup.throttling(root=first) == (2, 1.5)
    assert cgroup.throttling(root=tree(tmp_path / "none", {})) is None
