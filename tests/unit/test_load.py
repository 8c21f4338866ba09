"""Reading manifests and locks: what is accepted, and what each refusal names."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinner.deploy.load import find_manifest, load_manifest
from pinner.deploy.locks import load_lock, read_lock
from pinner.deploy.tomlfile import data_digest
from pinner.errors import ExitCode, LockError, ManifestError, UsageError

GOOD = """\
version = 1
[engine]
kind = "pocket"
source = { git = "engine.bundle", commit = "good" }
[engine.args]
tp-size = 2
[python]
version = "3.11"
requirements = ["numpy"]
[model]
path = "model"
[draft]
path = "draft"
algorithm = "EAGLE3"
[env]
NCCL_PROTO = "Simple"
NCCL_DEBUG = 1
HF_TOKEN = { secret = "HF_TOKEN" }
"""


def write(tmp_path: Path, text: str, name: str = "one.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def refusal(tmp_path: Path, text: str, name: str = "one.toml") -> str:
    with pytest.raises(ManifestError) as caught:
        load_manifest(write(tmp_path, text, name))
    assert caught.value.exit_code is ExitCode.INVALID
    return caught.value.message


def test_a_good_manifest_is_read(tmp_path: Path) -> None:
    deployment = load_manifest(write(tmp_path, GOOD))
    assert deployment.name == "one"
    assert deployment.manifest.engine.args == {"tp-size": 2}
    assert deployment.lock_path == tmp_path / "one.lock"
    assert deployment.pylock_path == tmp_path / "pylock.one.toml"


def test_the_digest_ignores_comments_and_order(tmp_path: Path) -> None:
    first = load_manifest(write(tmp_path, GOOD)).digest
    swapped = GOOD.replace('path = "draft"\nalgorithm = "EAGLE3"', 'algorithm = "EAGLE3" # why\npath = "draft"')
    assert load_manifest(write(tmp_path, swapped)).digest == first
    assert load_manifest(write(tmp_path, GOOD.replace('"Simple"', '"LL"'))).digest != first


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (('kind = "pocket"', 'knid = "pocket"'), ["engine.knid", "`kind`"]),
        (("tp-size = 2", "tp_size = 2"), ["engine.args.tp_size", "`tp-size`"]),
        (("tp-size = 2", '"--tp-size" = 2'), ["engine.args.--tp-size", "`tp-size`"]),
        (("tp-size = 2", 'api-key = "sk-1"'), ["engine.args.api-key", "secret"]),
        (("tp-size = 2", 'revision = "main"'), ["engine.args.revision", "model.revision"]),
        (("[model]", 'exclude-newer = "3 days"\n[model]'), ["python.exclude-newer", "3 days"]),
        (("[model]", 'exclude-newer = "yesterday"\n[model]'), ["python.exclude-newer"]),
        (("[env]", "[serve]\nstart-timeout-s = inf\n[env]"), ["serve.start-timeout-s", "finite"]),
        (("[env]", '[serve]\nhost = "-x"\n[env]'), ["serve.host", "-x"]),
        (('commit = "good"', 'comit = "good"'), ["engine.source.comit", "`commit`"]),
        (("[python]", "[pyhton]"), ["pyhton", "`python`"]),
        (('algorithm = "EAGLE3"', ""), ["draft.algorithm", "is missing"]),
        (('algorithm = "EAGLE3"', 'algorithm = "EAGLE3"\nnum_steps = 3'), ["draft.num_steps", "`num-steps`"]),
        (("[env]", "[env]\nBAD = 1.5"), ["env.BAD", "string"]),
        (("[env]", '[env]\n"NOT A NAME" = "x"'), ["NOT A NAME"]),
        (("[env]", '[env]\nX = { secert = "Y" }'), ["env.X.secert", "`secret`"]),
        (("[env]", '[env]\nX = { secret = "Y", site = "Z" }'), ["env.X", "exactly one"]),
        (("[env]", '[env]\nX = "a\\u0000b"'), ["env.X", "NUL"]),
        (("[env]", '[env]\nPYTHONSAFEPATH = "0"'), ["PYTHONSAFEPATH", "pinner itself"]),
        (("[env]", '[env]\nPYTHONPATH = "/x"'), ["env.PYTHONPATH", "nothing pins"]),
        (("[env]", "[env]\nHF_HUB_OFFLINE = false"), ["env.HF_HUB_OFFLINE", "is 1 always"]),
        (("[env]", '[env]\nHF_HUB_OFFLINE = { site = "X" }'), ["env.HF_HUB_OFFLINE", "is 1 always"]),
        (("tp-size = 2", 'model-path = "x"'), ["engine.args.model-path", "model.path"]),
        (('git = "engine.bundle"', 'git = "engine.bundle", path = "x"'), ["engine.source", "exactly one"]),
        (('commit = "good"', 'commit = "--upload-pack=x"'), ["engine.source.commit"]),
        (('commit = "good"', 'commit = "a..b"'), ["engine.source.commit"]),
        (('commit = "good"', 'commit = "good", subdirectory = "../x"'), ["engine.source.subdirectory", "leaves"]),
        (('version = "3.11"', 'version = "3.11.7"'), ["python.version"]),
        (('requirements = ["numpy"]', 'requirements = ["-r x"]'), ["python.requirements[0]", "option"]),
        (('requirements = ["numpy"]', 'requirements = ["numpy\\n-r x"]'), ["python.requirements[0]", "one line"]),
        (('HF_TOKEN = { secret = "HF_TOKEN" }', 'HF_TOKEN = "hf_x"'), ["env.HF_TOKEN", "is a secret"]),
        (("NCCL_DEBUG = 1", 'PYTHONPATH = { site = "PYTHONPATH" }'), ["env.PYTHONPATH", "steers"]),
        (("version = 1", "version = 2"), ["version", "newer"]),
        (("version = 1", "version = true"), ["version"]),
        (("version = 1", 'version = "1"'), ["version"]),
        (("[env]", "[bench]\nx = 1\n[env]"), ["bench"]),
        (('kind = "pocket"', 'kind = "sglan"'), ["engine.kind", "'sglang'"]),
        (("[model]\npath", "[model]\npath = 3\nx"), ["model"]),
        (("[env]", "[serve]\nport = 70000\n[env]"), ["serve.port"]),
    ],
)
def test_refusals_name_file_and_key(tmp_path: Path, change: tuple[str, str], expected: list[str]) -> None:
    assert change[0] in GOOD
    message = refusal(tmp_path, GOOD.replace(*change, 1))
    assert str(tmp_path / "one.toml") in message
    for part in expected:
        assert part in message


def test_every_unknown_key_is_named_at_once(tmp_path: Path) -> None:
    message = refusal(tmp_path, GOOD.replace("kind", "knid").replace("algorithm", "algoritm"))
    assert "engine.knid" in message
    assert "draft.algoritm" in message


def test_syntax_errors_name_the_line(tmp_path: Path) -> None:
    assert "line 2" in refusal(tmp_path, "version = 1\nkind = = 3\n")


@pytest.mark.parametrize("kind", ["pocket", "sglang"])
@pytest.mark.parametrize("prefix", ["SGLANG_", "SGL_", ""])
@pytest.mark.parametrize("value", ['"3.5"', "0", '{ site = "X" }'])
def test_variables_that_fake_acceptance_are_refused(tmp_path: Path, kind: str, prefix: str, value: str) -> None:
    text = GOOD.replace("pocket", kind).replace("NCCL_DEBUG = 1", f"{prefix}SIMULATE_ACC_LEN = {value}")
    message = refusal(tmp_path, text)
    assert f"env.{prefix}SIMULATE_ACC_LEN: fakes how many drafted tokens are accepted" in message


@pytest.mark.parametrize(
    "text", ["version = 1\nx = " + "[" * 5000, "version = 1\nd = 2026-99-99", "version = 1\nx = " + "{a=" * 3000]
)
def test_absurd_toml_is_refused(tmp_path: Path, text: str) -> None:
    assert "not valid TOML" in refusal(tmp_path, text)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_bytes(b"version = 1 # \xff")
    with pytest.raises(ManifestError, match="not UTF-8"):
        load_manifest(tmp_path / "one.toml")


@pytest.mark.parametrize("name", ["a b.toml", "one.tml", ".toml", "-x.toml"])
def test_names_are_letters_digits_dashes(tmp_path: Path, name: str) -> None:
    assert "not a name" in refusal(tmp_path, GOOD, name)


def test_draft_tokens_that_the_engine_would_override(tmp_path: Path) -> None:
    text = GOOD.replace("[env]", "num-steps = 3\neagle-topk = 1\nnum-draft-tokens = 5\n[env]")
    assert "draft.num-draft-tokens" in refusal(tmp_path, text)


def test_h12_an_algorithm_without_a_draft(tmp_path: Path) -> None:
    """Case H12: SGLang would take the target as its own draft."""
    text = GOOD.replace('[draft]\npath = "draft"', "[draft]")
    assert "draft.path" in refusal(tmp_path, text)
    text = GOOD.replace('[draft]\npath = "draft"\nalgorithm = "EAGLE3"\n', "").replace(
        "tp-size = 2", 'speculative-algorithm = "EAGLE3"'
    )
    assert "draft.algorithm" in refusal(tmp_path, text)


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load_manifest(path).name == "one"


def test_a_directory_behind_a_link_is_the_same_deployment(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    path = write(real, GOOD)
    assert load_manifest(path).key == load_manifest(tmp_path / "link" / "one.toml").key
    assert load_manifest(path).key != load_manifest(write(real, GOOD, "two.toml")).key


def test_numbers_are_compared_by_value() -> None:
    assert data_digest({"a": 3, "b": [1.0]}) == data_digest({"a": 3.0, "b": [1]})
    assert data_digest({"a": 3}) != data_digest({"a": 3.5})


def test_dates_need_no_quotes(tmp_path: Path) -> None:
    text = GOOD.replace('version = "3.11"', 'version = "3.11"\nexclude-newer = 2026-11-01')
    assert load_manifest(write(tmp_path, text)).manifest.python.exclude_newer == "2026-11-01"


def test_find_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deployments").mkdir()
    path = write(tmp_path / "deployments", GOOD)
    for text in ("one.toml", "one", "deployments/one.toml", "deployments/one.lock", str(path)):
        assert find_manifest(text) == path
    with pytest.raises(UsageError, match=r"two\.toml"):
        find_manifest("two.toml")
    with pytest.raises(UsageError, match="directory"):
        find_manifest("deployments")


def test_a_missing_lock_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LockError) as caught:
        load_lock(load_manifest(write(tmp_path, GOOD)))
    assert "pinner lock" in (caught.value.hint or "")


def test_a_newer_lock_names_the_pinner_that_reads_it(tmp_path: Path) -> None:
    deployment = load_manifest(write(tmp_path, GOOD))
    deployment.lock_path.write_text('version = 9\nrequires-pinner = "4.2.0"\n')
    with pytest.raises(LockError) as caught:
        read_lock(deployment)
    assert "format 9" in caught.value.message
    assert "pinner 4.2.0" in (caught.value.hint or "")


def test_data_digest_is_of_data() -> None:
    assert data_digest({"a": 1, "b": [2]}) == data_digest({"b": [2], "a": 1})
    assert data_digest({"a": "1"}) != data_digest({"a": 1})
