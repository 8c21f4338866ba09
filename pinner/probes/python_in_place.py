"""An environment in place: pinned and compared by the content of everything that it brings into the engine.

Owns the order of looking, and what of the environment's configuration is told. What is installed is read in
probes/installed.py and judged in probes/installed_drift.py; code outside of the environment is in
probes/linked.py, the interpreter in probes/base_interpreter.py. Must not write anything but the memory of digests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pinner.errors import ManifestError, UnknownFact
from pinner.host.digest import DigestMemory
from pinner.host.interpreter import Interpreter, Question, locate
from pinner.model.facts import Unknown
from pinner.model.lock import PythonPin
from pinner.probes.base import Findings, Scene
from pinner.probes.base_interpreter import KEY, Base, digest_of
from pinner.probes.installed import Reading, Snapshots, read_contents, site_names, snapshots_of
from pinner.probes.installed_drift import judge_contents
from pinner.probes.inventory import recall_entries, remember_entries
from pinner.probes.linked import Linked, Surroundings, link_key, not_followed
from pinner.probes.python_sealed import judge_interpreter, look_at_byte_code
from pinner.probes.python_words import key_of

_MOST_NOTES = 5
_SITES = "site-packages"


def pin(
    directory: Path, path: str, memory: DigestMemory, *, engine: Path | None = None
) -> tuple[PythonPin, list[str]]:
    """Pin the environment at `path` as it is; also what is worth telling.

    `engine` is the directory of a checkout in place that the engine is imported from. ManifestError without an
    environment, UnknownFact if a file is not readable.
    """
    root, python = locate(directory / path)
    if not python.exists():
        raise ManifestError(f"python.path: there is no interpreter at {python}")
    answer = Question(python, root).answer()
    if isinstance(answer, Unknown):
        raise UnknownFact(f"python.path: {answer.reason}")
    contents = read_contents(answer, snapshots_of(answer, memory), memory)
    for name, unknown in contents.unknown.items():
        raise UnknownFact(f"python.path: {name}: {unknown.reason}")
    base = Base(answer, memory, byte_code=False)
    interpreter = _known(digest_of(base), "its interpreter")
    elsewhere = _elsewhere(answer, engine)
    linked = Linked(contents.leads, Surroundings(directory, elsewhere, memory))
    pinned = PythonPin(
        version=answer.minor,
        patch_level=answer.version,
        path=path,
        distributions=contents.distribution_pins(),
        loose=contents.loose_pins(),
        interpreter=interpreter,
        site_packages=tuple(site_names(answer)),
        linked={name: _known(digest, name) for name, digest in linked.pins().items()},
    )
    remember_entries(memory, [*contents.entries(), (interpreter, base.gathered.entries)])
    linked.remember()
    notes = _capped(contents.outside)
    notes += not_followed([Path(place) for place in answer.places], linked, elsewhere)
    if not (Path(answer.prefix) / "pyvenv.cfg").is_file():
        notes.append(f"{root} is no virtual environment: programs in its bin count only where a RECORD names them")
    return pinned, notes


def _known(digest: str | Unknown, what: str) -> str:
    if isinstance(digest, Unknown):
        raise UnknownFact(f"python.path: {what}: {digest.reason}")
    return digest


def _elsewhere(answer: Interpreter, engine: Path | None) -> list[Path]:
    """What is looked at anyway, and so is no linked code."""
    return [Path(place) for place in (*answer.places, *answer.path)] + ([engine] if engine is not None else [])


def look(scene: Scene, pinned: PythonPin) -> Findings:
    """Everything in the environment that is not as locked."""
    root, python = locate(scene.directory / (pinned.path or ""))
    found = Findings()
    answer = Question(python, root).answer()
    judge_interpreter(answer, python, "" if pinned.interpreter else pinned.patch_level, found)
    if isinstance(answer, Unknown):
        reason = Unknown("the interpreter of the environment does not run")
        keys = [key_of(one.name) for one in pinned.distributions] + [*pinned.loose, *map(link_key, pinned.linked)]
        found.facts |= dict.fromkeys(keys + ([KEY] if pinned.interpreter else []), reason)
        return found
    _judge_base(scene, answer, pinned, found)
    _judge_sites(answer, pinned, found)
    snapshots = snapshots_of(answer, scene.memory, pinned.site_packages, deep=scene.deep)
    found.how.append(_how(snapshots, deep=scene.deep))
    seen = Reading(answer, snapshots, scene.memory)
    if not scene.deep and seen.is_known_to_give(pinned.distributions, pinned.loose):
        outside, leads = seen.outside, seen.leads
        found.facts.update(pinned.loose)
        found.facts.update({key_of(one.name): one.content for one in pinned.distributions})
    else:
        contents = read_contents(answer, snapshots, scene.memory, deep=scene.deep)
        if not contents.unknown:
            seen.remember(contents)
        judge_contents(pinned, contents, scene.memory, Path(answer.prefix), found)
        outside, leads = contents.outside, contents.leads
    found.notes += _capped(outside)
    linked = Linked(
        leads, Surroundings(scene.directory, _elsewhere(answer, engine_of(scene)), scene.memory, scene.deep)
    )
    linked.judge(pinned.linked, found)
    if scene.workspace is not None:
        look_at_byte_code(scene, scene.workspace, found)
    return found


def engine_of(scene: Scene) -> Path | None:
    """Where a checkout in place is imported from."""
    source = scene.lock.engine.source
    return scene.directory / (source.path or "") / source.subdirectory if source.type == "path" else None


def _judge_base(scene: Scene, answer: Interpreter, pinned: PythonPin, found: Findings) -> None:
    """The interpreter. Another one is one difference."""
    if pinned.interpreter is None:
        found.notes.append("the lock does not pin the interpreter itself; `pinner lock` does")
        return
    if answer.version != pinned.patch_level:
        note = (
            f"the interpreter was {pinned.patch_level} when this was locked and is {answer.version}; "
            "`pinner lock` pins it as it is"
        )
        found.facts[KEY] = pinned.interpreter
        if answer.minor != pinned.version:
            return
        found.differs("interpreter", pinned.patch_level, answer.version, note, f"it is {answer.executable}")
        return
    digest = pinned.interpreter
    base = Base(answer, scene.memory, byte_code=False, deep=scene.deep)
    base.judge(digest, lambda: recall_entries(scene.memory, digest), found, since="when this was locked")


def _judge_sites(answer: Interpreter, pinned: PythonPin, found: Findings) -> None:
    """Whether packages come from the directories that were pinned: if not, all that lies in others is one fact."""
    names = tuple(site_names(answer))
    if not pinned.site_packages or set(names) == set(pinned.site_packages):
        return
    added = [one for one in names if one not in pinned.site_packages]
    removed = [one for one in pinned.site_packages if one not in names]
    config = Path(answer.prefix) / "pyvenv.cfg"
    said = [f"also from {Path(answer.prefix, one).resolve()}, whose packages are not pinned" for one in added]
    said += [f"not from {one} any more" for one in removed]
    lines = []
    if config.is_file():
        text = config.read_text("utf-8", errors="replace").splitlines()
        lines = [f"{config}: {line.strip()}" for line in text if line.startswith("include-system-site-packages")]
    found.differs(
        _SITES,
        ", ".join(key_of(one) for one in pinned.site_packages),
        ", ".join(key_of(one) for one in names),
        f"the environment imports {' and '.join(said)}",
        *lines,
    )


def _capped(notes: Sequence[str]) -> list[str]:
    """No more notes of one kind than a person reads."""
    kept = list(notes[:_MOST_NOTES])
    if len(notes) > len(kept):
        more = len(notes) - len(kept)
        kept.append(
            f"and {more:,} more {'distribution' if more == 1 else 'distributions'} of which the same is true"
        )
    return kept


def _how(snapshots: Snapshots, *, deep: bool) -> str:
    count = sum(snapshot.file_count for snapshot in snapshots.values())
    anew = sum(snapshot.read_anew for snapshot in snapshots.values())
    read = "every byte read" if deep else f"{anew:,} read anew" if anew else "all by remembered digest"
    return f"{count:,} {'file' if count == 1 else 'files'} of site-packages, {read}"
