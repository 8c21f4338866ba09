"""What the comparison of two benchmarks claims, held against simulated truth.

    uv run python benchmarks/verdicts.py [COMPARISONS]

Servers of the same code differ by 5 or 10 % from start to start and by 0.5 % from repeat to repeat. First the
share of wrong verdicts on identical code (A/A), which must not exceed 5 %; beside it what a hierarchical
percentile bootstrap would say on the same data, the reason for which pinner does not use one. Then how often a
true change of 2, 5, 10 and 30 % is called by its name: the power.

The second table is of `pinner reproduce`, which looks at 2, 4 and 8 fresh starts until it is certain: how often it
says that identical code is not reproduced, and how often that a loss of 30 % is not, after how many starts.
"""

from __future__ import annotations

import sys

import numpy as np

from pinner.measure.statistics import Verdict, compare, is_no_worse, looks

WITHIN = 0.005
TOLERANCE = 0.02
REPEATS = 3
DRAWS = 400
# As `pinner reproduce` has them by default.
MOST_STARTS = 8
REPRODUCE_TOLERANCE = 0.05


def measured(random: np.random.Generator, starts: int, mean: float, between: float) -> list[list[float]]:
    """`starts` lists of repeats around a mean of their own."""
    means = mean * (1 + between * random.standard_normal(starts))
    return [list(own * (1 + WITHIN * random.standard_normal(REPEATS))) for own in means]


def bootstrap_excludes_zero(random: np.random.Generator, a: list[list[float]], b: list[list[float]]) -> bool:
    """Resample starts, then repeats within them; whether the 95 % percentile interval leaves out no change."""
    draws = []
    for side in (a, b):
        values = np.log(np.array(side))
        chosen = values[random.integers(len(side), size=(DRAWS, len(side)))]
        repeats = random.integers(REPEATS, size=chosen.shape)
        draws.append(np.take_along_axis(chosen, repeats, axis=2).mean(axis=(1, 2)))
    low, high = np.quantile(draws[1] - draws[0], [0.025, 0.975])
    return bool(low > 0 or high < 0)


def repeated(random: np.random.Generator, starts: int, loss: float, between: float) -> tuple[str, int]:
    """The answer of `reproduce` for a record of so many starts, and after how many fresh ones it fell."""
    a, b = measured(random, starts, 100, between), measured(random, MOST_STARTS, 100 * (1 - loss), between)
    for look in looks(MOST_STARTS):
        change = compare(
            a, b[: look.starts], less_is_better=False, tolerance=REPRODUCE_TOLERANCE, alpha=look.alpha
        )
        if change.verdict is Verdict.WORSE:
            return "not reproduced", look.starts
        if is_no_worse(change, REPRODUCE_TOLERANCE, less_is_better=False):
            return "reproduced", look.starts
    return "inconclusive", MOST_STARTS


def reproductions(random: np.random.Generator, comparisons: int) -> None:
    print()
    print(f"`reproduce`, at most {MOST_STARTS} starts, tolerance {REPRODUCE_TOLERANCE:.0%}")
    print(
        "had  between  identical code: not reproduced  reproduced  (starts)  30 % slower: not reproduced  (starts)"
    )
    for between in (0.01, 0.02, 0.05, 0.10):
        for starts in (2, 3, 5):
            cells = []
            for loss in (0.0, 0.3):
                found = [repeated(random, starts, loss, between) for _ in range(comparisons)]
                answers = [answer for answer, _ in found]
                mean = sum(count for _, count in found) / comparisons
                cells.append((answers.count("not reproduced"), answers.count("reproduced"), mean))
            (wrong, right, ends), (caught, _, caught_at) = cells
            print(
                f"{starts:3d}  {between:7.0%}  {wrong / comparisons:30.1%}  {right / comparisons:10.1%}"
                f"  {ends:8.1f}  {caught / comparisons:27.1%}  {caught_at:8.1f}"
            )


def main(comparisons: int = 1000) -> None:
    random = np.random.default_rng(1)
    print(f"{comparisons:,} comparisons each; {REPEATS} repeats, {WITHIN:.1%} apart; tolerance {TOLERANCE:.0%}")
    print("starts  between  wrong on identical code  (bootstrap)  called worse at a loss of  2 %  5 %  10 %  30 %")
    for between in (0.05, 0.10):
        for starts in (2, 3, 5, 10):
            wrong = resampled = 0
            for _ in range(comparisons):
                a, b = (measured(random, starts, 100, between) for _ in range(2))
                change = compare(a, b, less_is_better=False, tolerance=TOLERANCE)
                wrong += change.verdict in (Verdict.BETTER, Verdict.WORSE)
                resampled += bootstrap_excludes_zero(random, a, b)
            found = []
            for loss in (0.02, 0.05, 0.10, 0.30):
                hits = 0
                for _ in range(comparisons):
                    a, b = (measured(random, starts, mean, between) for mean in (100, 100 * (1 - loss)))
                    hits += compare(a, b, less_is_better=False, tolerance=TOLERANCE).verdict is Verdict.WORSE
                found.append(f"{hits / comparisons:6.1%}")
            print(
                f"{starts:6d}  {between:7.0%}  {wrong / comparisons:23.1%}  {resampled / comparisons:12.1%}"
                f"  {'':26}{'  '.join(found)}"
            )
    reproductions(random, comparisons)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
