"""Signatures with a person's SSH key, made and judged by ssh-keygen.

Owns how ssh-keygen is asked. Must not read a key: it is passed by path, and ssh-keygen or the agent uses it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pinner.errors import OperationFailed, UsageError
from pinner.host import process

# What of the caller's environment ssh-keygen needs: the agent, and where known programs are.
_PASSED = ("PATH", "HOME", "SSH_AUTH_SOCK", "SSH_SK_PROVIDER", "SSH_PKCS11_HELPER")
# A key on a token waits to be touched.
_TIMEOUT_S = 120.0
_KEY = re.compile(r"with (\S+) key (SHA256:\S+)")


class Signer(msgspec.Struct, frozen=True, kw_only=True):
    """Whose signature it is: the key, and the name that the allowed signers give it; None if nobody vouches."""

    key: str
    principal: str | None = None


def sign(data: bytes, key: Path, *, namespace: str) -> bytes:
    """Sign with a private key, or with the agent's key of which `key` is the public half."""
    if not key.is_file():
        raise UsageError(f"there is no key {key}", hint="`ssh-keygen -t ed25519` makes one")
    done = _run(["-Y", "sign", "-f", str(key), "-n", namespace], data)
    if done.code != 0:
        hint = f"a key with a passphrase is used through the agent: `ssh-add {key}`, then --key {key}.pub"
        raise OperationFailed(f"cannot sign with {key}: {_said(done)}", hint=hint)
    return done.stdout


def verify(data: bytes, signature: Path, *, namespace: str, allowed: Path | None) -> Signer | str:
    """Who signed, or why the signature is none. With `allowed` only those whom that file names count."""
    known = _run(["-Y", "check-novalidate", "-n", namespace, "-s", str(signature)], data)
    if known.code != 0:
        return _said(known)
    found = _KEY.search((known.stdout + known.stderr).decode(errors="replace"))
    key = f"{found[1]} {found[2]}" if found else "a key"
    if allowed is None:
        return Signer(key=key)
    if not allowed.is_file():
        raise UsageError(f"there is no file of allowed signers {allowed}")
    named = _run(["-Y", "find-principals", "-s", str(signature), "-f", str(allowed)], data)
    said = ""
    for principal in named.stdout.decode(errors="replace").splitlines() if named.code == 0 else []:
        argv = ["-Y", "verify", "-f", str(allowed), "-I", principal, "-n", namespace, "-s", str(signature)]
        done = _run(argv, data)
        if done.code == 0:
            return Signer(key=key, principal=principal)
        said = f" ({_said(done)})"
    return f"{allowed} does not allow {key}{said}"


def _run(argv: Sequence[str], data: bytes) -> process.Completed:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise OperationFailed("there is no ssh-keygen here", hint="install the OpenSSH client, 8.2 or newer")
    env = {name: os.environ[name] for name in _PASSED if name in os.environ}
    # No window may open to ask for a passphrase.
    env |= {"LC_ALL": "C", "SSH_ASKPASS_REQUIRE": "never"}
    return process.run([program, *argv], env=env, input=data, timeout_s=_TIMEOUT_S, check=False)


def _said(done: process.Completed) -> str:
    text = (done.stderr or done.stdout).decode(errors="replace").strip()
    return text.splitlines()[-1] if text else f"ssh-keygen exited with {done.code}"
