"""Code of an environment in place that lies outside of it: what .pth files, editable finders and symlinks add.

Owns finding these places and comparing what lies there. The engine's own checkout is left out, for the probe of
the source pins it. What cannot be followed is told, not guessed.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from pinner.host import checkout
from pinner.host.digest import DigestMemory, Scope
from pinner.host.files import escaped
from pinner.host.history import SHORT
from pinner.model.facts import ABSENT, Unknown
from pinner.probes.base import Findings
from pinner.probes.gathered import Entries, Gathered
from pinner.probes.inventory import recall_entries, remember_entries
from pinner.probes.python_words import key_of, shown, when

_CACHES = {
    ".git",
    ".hg",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".tox",
    ".nox",
    "node_modules",
}
_PACKAGE = Scope(exclude=frozenset(_CACHES))
_ENTRY = Scope(exclude=frozenset(_CACHES), skip_environments=True)
_CODE = (".py", ".pyc", ".so", ".pyd", ".dylib")
_MANY = 20  # more differing files of one tree than these are told as one difference


class Candidate(NamedTuple):
    """A place that something in site-packages leads to. `is_entry`: it is put on the import path itself."""

    path: str
    is_entry: bool
    via: str


def candidates(places: Sequence[Path], links: Sequence[Path]) -> list[Candidate]:
    """Everything that the site-packages `places` lead to; `links` are symlinks in them."""
    found: dict[str, Candidate] = {}
    for place in places:
        for file in sorted(place.glob("*.pth")):
            for one in _of_pth(file):
                found.setdefault(one.path, one)
    for link in links:
        if link.is_dir():
            found.setdefault(str(link), Candidate(str(link), False, f"the symlink {link.name}"))
    return list(found.values())


def _of_pth(file: Path) -> Iterator[Candidate]:
    try:
        lines = file.read_text("utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return
    for text in lines:
        line = text.rstrip()
        if line.startswith(("import ", "import\t")):
            for path, via in _of_code(line, file):
                yield Candidate(path, False, via)
        elif line and not line.startswith("#"):
            yield Candidate(os.path.normpath(file.parent / line), True, file.name)


def _of_code(line: str, file: Path) -> Iterator[tuple[str, str]]:
    """Absolute paths that a line of a .pth file, or a module beside it that it imports, has in its text."""
    tree = _parsed(line)
    if tree is None:
        return
    yield from ((path, file.name) for path in _paths_in(tree))
    for node in ast.walk(tree):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        for name in names:
            module = file.with_name(f"{name}.py")
            code = _parsed(module) if module.is_file() else None
            if code is not None:
                yield from ((path, f"{module.name}, which {file.name} runs") for path in _paths_in(code))


def _parsed(code: str | Path) -> ast.Module | None:
    try:
        return ast.parse(code.read_bytes() if isinstance(code, Path) else code)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _paths_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("/"):
            path = Path(node.value)
            if "\0" not in node.value and path.is_dir() and path != Path("/"):
                yield str(path)
            elif "\0" not in node.value and path.is_file() and path.suffix in _CODE:
                yield str(_package_of(path))


def _package_of(path: Path) -> Path:
    """The topmost package that a module belongs to; the module itself where it belongs to none."""
    while (path.parent / "__init__.py").is_file():
        path = path.parent
    return path


class Surroundings(NamedTuple):
    """What a look at linked code needs to know: where relative paths start, and what is looked at elsewhere."""

    directory: Path
    elsewhere: Sequence[Path]
    memory: DigestMemory
    deep: bool = False


class Linked:
    """The linked trees now, by the path that names them in a lock."""

    def __init__(self, found: Sequence[Candidate], around: Surroundings) -> None:
        self.trees: dict[str, Gathered] = {}
        self._via: dict[str, str] = {}
        self._memory = around.memory
        elsewhere = [os.path.realpath(place) for place in around.elsewhere]
        pending = list(found)
        while pending:
            one = pending.pop(0)
            root = os.path.realpath(one.path)
            name = _spelled(root, around.directory)
            if name in self.trees or any(_is_in(root, place) for place in elsewhere) or not Path(root).exists():
                continue
            scope, rule = (_ENTRY, "importable") if one.is_entry else (_PACKAGE, "")
            choose = _importable if one.is_entry else dict
            tree = Gathered({".": Path(root)}, around.memory, scope, rule=rule, choose=choose, deep=around.deep)
            self.trees[name] = tree
            self._via[name] = one.via
            pending += [
                Candidate(str(link), False, f"{one.via} and the symlink {link.name}")
                for link in tree.links_to_directories()
            ]

    def pins(self) -> dict[str, str | Unknown]:
        """The digest of each tree."""
        return {name: tree.digest for name, tree in sorted(self.trees.items())}

    def remember(self) -> None:
        """Note what the digests stand for, so that a later check can name files."""
        known = [(digest, tree.entries) for tree in self.trees.values() if isinstance(digest := tree.digest, str)]
        remember_entries(self._memory, known)

    def judge(self, pinned: Mapping[str, str], found: Findings) -> None:
        """Add what is not as pinned."""
        for name in sorted(pinned.keys() | self.trees.keys()):
            tree = self.trees.get(name)
            if tree is None:
                found.differs(link_key(name), pinned[name], ABSENT, "nothing leads there any more, or it is gone")
            elif name not in pinned:
                note = f"{self._via[name]} adds it to what can be imported: it was not so when locking"
                found.differs(link_key(name), ABSENT, tree.digest, note, *self._evidence(tree))
            else:
                found.facts[link_key(name)] = tree.digest
                if tree.digest != pinned[name] and isinstance(tree.digest, str):
                    self._tell(name, tree, pinned[name], found)

    def _tell(self, name: str, tree: Gathered, pinned: str, found: Findings) -> None:
        """Name the files that differ, where it is remembered what was pinned and they are not too many."""
        before = recall_entries(self._memory, pinned)
        now = tree.entries
        key, evidence = link_key(name), self._evidence(tree)
        paths = (
            []
            if before is None
            else [path for path in before.keys() | now.keys() if before.get(path) != now.get(path)]
        )
        if before is None or len(paths) > _MANY or paths == ["."]:
            said = f"{len(paths):,} of its files differ" if len(paths) > 1 else "edited" if paths else "it differs"
            lines = [key_of(path.removeprefix("./")) for path in sorted(paths)[:_MANY] if path != "."]
            found.differs(key, pinned, tree.digest, f"{self._via[name]} leads to it: {said}", *lines, *evidence)
            return
        # Apart from these files the tree is the pinned one.
        found.facts[key] = pinned
        for path in paths:
            was, seen = before.get(path), now.get(path)
            done = "added" if was is None else "removed" if seen is None else "edited"
            found.differs(
                f"{key}/{key_of(path.removeprefix('./'))}",
                *shown(was, seen),
                f"{self._via[name]} leads to {tree.place('.')}: {done}",
                *when(tree.place(path)),
                *evidence,
            )

    def _evidence(self, tree: Gathered) -> tuple[str, ...]:
        state = checkout.find(tree.place("."))
        if state is None:
            return ()
        branch = f" (branch {state.branch})" if state.branch else ""
        return (f"that is the checkout {state.toplevel}, now at {state.head[:SHORT]}{branch}",)


def link_key(name: str) -> str:
    """The key of a linked tree."""
    return key_of(name if name.startswith("/") else f"linked/{name}")


def not_followed(places: Sequence[Path], linked: Linked, elsewhere: Sequence[Path]) -> list[str]:
    """Sentences about editable installs whose code is reached in a way that cannot be told."""
    covered = [str(tree.place(".")) for tree in linked.trees.values()]
    covered += [os.path.realpath(place) for place in elsewhere]
    notes = []
    for place in places:
        for file in sorted(place.glob("*.dist-info/direct_url.json")):
            project = _editable(file)
            if project and not any(_is_in(one, project) or _is_in(project, one) for one in covered):
                name = file.parent.name.removesuffix(".dist-info")
                notes.append(
                    f"{name} is installed editable from {project}, in a way that is not followed: not pinned"
                )
    return notes


def _editable(file: Path) -> str:
    """The directory that a direct_url.json names as installed editable, or ""."""
    try:
        said = msgspec.json.decode(file.read_bytes(), type=dict[str, object])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    information, address = said.get("dir_info"), said.get("url")
    if not isinstance(information, dict) or not information.get("editable") or not isinstance(address, str):
        return ""
    return os.path.realpath(unquote(urlsplit(address).path))


def _importable(entries: Entries) -> Entries:
    """What an import can reach below a path entry: modules, and directories that hold code, with all in them.

    Other files beside them (a manifest, a lock, logs) come and go.
    """
    holding = {path.partition("/")[0] for path in entries if "/" in path and path.endswith(_CODE)}
    return {
        path: entry
        for path, entry in entries.items()
        if path.partition("/")[0] in holding or ("/" not in path and path.endswith(_CODE))
    }


def _spelled(path: str, directory: Path) -> str:
    """A path as a lock names it: relative where it lies beside the manifest."""
    top = os.path.realpath(directory)
    text = os.path.relpath(path, top) if _is_in(path, top) and path != top else path
    return escaped(text)


def _is_in(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}/")
