"""Draw docs/incident.svg: what `pinner up` prints after the stray pull of docs/incident.md.

Plays the incident in a scratch directory, in a terminal of its own, and exports the screen with rich.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
WHO = {"GIT_COMMITTER_NAME": "Sam Rivera", "GIT_COMMITTER_EMAIL": "sam@example.com"}
COLUMNS = 118


def in_terminal(command: list[str], env: dict[str, str]) -> str:
    """What a command prints where it can see a terminal."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=follower, stderr=subprocess.DEVNULL)
    os.close(follower)
    pieces = []
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        pieces.append(piece)
    process.wait()
    os.close(leader)
    return b"".join(pieces).decode()


def main() -> None:
    text = (ROOT / "docs" / "incident.md").read_text()
    steps = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, **WHO, "PINNER_HOME": home, "COLUMNS": str(COLUMNS)}
        for step in steps[:4]:
            subprocess.run(["bash", "-ec", step], cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL)
        command = ["uv", "run", "pinner", "up", "incident/incident.toml"]
        said = in_terminal(command, env)
        subprocess.run(["rm", "-rf", str(ROOT / "incident")], check=True)
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text("$ git -C incident/pocket pull --quiet"))
    console.print(Text(f"$ {' '.join(command[2:])}"))
    console.print(Text.from_ansi(said.replace("\r\n", "\n").strip()))
    picture = console.export_svg(title="pinner")
    # No fonts from elsewhere: whoever looks at the page asks nobody.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL).replace(
        "Fira Code", "DejaVu Sans Mono"
    )
    (ROOT / "docs" / "incident.svg").write_text(picture)
    print(re.sub(r"\x1b\[[0-9;]*m", "", said).replace("\r\n", "\n"))


if __name__ == "__main__":
    main()
