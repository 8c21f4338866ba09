"""The command that measures: bench.

Must not decide anything: pinner/measure does.
"""

from __future__ import annotations

from pinner.command import overrides, tell_unmatched
from pinner.errors import ExitCode
from pinner.host.home import home
from pinner.terminal import Output
from pinner.verbs.pins import Accepted

_STATUS = {ExitCode.DIFFERENT: "regression", ExitCode.FAILED: "unknown"}


def bench(out: Output, manifest: str, name: str | None, *, attach: bool, accepted: Accepted) -> ExitCode:
    """Check, measure, check again, write the record."""
    from pinner.deploy.check import exit_code as drift_code
    from pinner.deploy.load import find_manifest, load_manifest
    from pinner.measure.bench import BenchOptions
    from pinner.measure.bench import bench as measure
    from pinner.measure.verdicts import exit_code
    from pinner.render_bench import bench_data, bench_text

    deployment = load_manifest(find_manifest(manifest))
    options = BenchOptions(attach=attach, overrides=overrides(*accepted), say=out.say)
    outcome = measure(deployment, name, home(), options)
    bench_text(out, outcome)
    tell_unmatched(out, outcome.drift, *accepted)
    if outcome.stored is None:
        code = drift_code(outcome.drift)
        out.envelope(code, bench_data(outcome, valid=False), status="unknown" if code is ExitCode.FAILED else "")
        return code
    code = exit_code(outcome.stored.record)
    out.envelope(code, bench_data(outcome, valid=code is not ExitCode.INVALID), status=_STATUS.get(code, ""))
    return code
