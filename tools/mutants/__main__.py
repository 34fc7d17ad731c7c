"""Plants mutants and says which property test kills which: `nox -s mutants`.

    python -m tools.mutants [--area AREA]... [--count 40] [--seed 0] [--quick] [--times 2] [--examples 50]
                            [--seconds 60] [--longest 30] [--shard K/N] [--try] [--state FILE] [--list] [--report]
                            [TESTS...]
    python -m tools.mutants --blame [--programs 300 | --symbols] [--area AREA]... [--count 40] [--seed 0] [--state FILE]

The mutants are edits of the syntax trees of passes, decompositions, type rules, lowerings, emission and guards
(`edits.py`), `count` of each area, drawn by `seed`. Only tests that draw their examples are run (`runner.py`). Results
are added to `state`: a run that was stopped goes on, and `--report` prints the tables of what there is. Several
processes may try shards of the tests (`--try`), with one state, and then judge shards of the mutants.
`survivors.txt` has those that change nothing that users see, each with its reason; they are judged last.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import pytest

from tools.mutants.edits import AREAS, PACKAGES, ROOT, Mutant, sample
from tools.mutants.runner import Limits, Runner, read

SURVIVORS = Path(__file__).with_name("survivors.txt")
KILLED_AT_LEAST = 0.95


def main() -> int:
    options = _options()
    chosen = sample(options.count, options.seed, tuple(options.area or AREAS))
    if options.list:
        print("\n".join(f"{mutant.name}  # {mutant.line}: {mutant.text}" for mutant in chosen))
        return 0
    if options.blame:
        from tools.mutants.blaming import blame_all  # loads all packages

        blame_all(chosen, options.state, options.programs, options.symbols)
        return 0
    if not options.report:
        shard, shards = map(int, options.shard.split("/"))
        limits = Limits(options.times, options.examples, options.seconds, options.longest)
        reasons = explained()
        judged = sorted(chosen, key=lambda mutant: mutant.name in reasons)[shard::shards]
        if options.trials:
            runner = Runner(chosen, options.state, limits, [], (shard, shards))
        else:
            runner = Runner(chosen, options.state, limits, judged)
        tests = options.tests or property_tests()
        pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:randomly", *tests], plugins=[runner])
        if options.trials:
            return 0
    return report(chosen, options.state)


def property_tests() -> list[str]:
    """The files of tests that draw examples."""
    files = [*PACKAGES.glob("*/tests/**/test_*.py"), *(ROOT / "integration_tests").glob("test_*.py")]
    return [str(file) for file in sorted(files) if "hypothesis" in file.read_text()]


def report(chosen: list[Mutant], state: Path) -> int:
    """Print the rate of each area, what each test kills, and the survivors; 1 if too many survive."""
    rows, reasons = read(state), explained()
    outcomes = {mutant: _outcome(mutant, rows, reasons) for mutant in chosen if mutant.name in rows}
    print(f"\n{'area':16} mutants  killed  equivalent  survived  unreached   rate")
    for area in (*AREAS, "all"):
        counts = Counter(outcome for mutant, outcome in outcomes.items() if area in ("all", mutant.area))
        if counts:
            print(f"{area:16} {counts.total():7} {counts['killed']:7} {counts['equivalent']:11} {counts['survived']:9}"
                  f" {counts['unreached']:10} {_rate(counts):6.1%}")  # fmt: skip
    killers = Counter(rows[m.name].get("test", "") for m, outcome in outcomes.items() if outcome == "killed")
    print("\nkills by test")
    for test, count in killers.most_common():
        print(f"{count:5}  {test or 'the process ended'}")
    print("\nsurvivors")
    for mutant, outcome in outcomes.items():
        if outcome in ("survived", "unreached"):
            print(f"{outcome:10} {mutant.name}\n           {mutant.file}:{mutant.line}: {mutant.text}")
    return int(_rate(Counter(outcomes.values())) < KILLED_AT_LEAST)


def _outcome(mutant: Mutant, rows: dict[str, dict[str, str]], reasons: dict[str, str]) -> str:
    found = rows[mutant.name]["outcome"]
    return "equivalent" if found != "killed" and mutant.name in reasons else found


def _rate(counts: Counter[str]) -> float:
    judged = counts["killed"] + counts["survived"] + counts["unreached"]
    return counts["killed"] / judged if judged else 1.0


def explained() -> dict[str, str]:
    """The mutants that change nothing that users see, with the reason."""
    rows = [line.split("  ", 1) for line in SURVIVORS.read_text().splitlines() if line and not line.startswith("#")]
    return {name: reason.strip() for name, reason in rows}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("tests", nargs="*", help="where property tests are looked for (default: all)")
    parser.add_argument("--area", action="append", choices=AREAS, help="plant in this area alone; may be repeated")
    parser.add_argument("--count", type=int, default=40, help="mutants of each area")
    parser.add_argument("--seed", type=int, default=0, help="draws the mutants")
    parser.add_argument("--times", type=int, default=2, help="so many times the examples of an ordinary run")
    parser.add_argument("--examples", type=int, default=50, help="of each property, at most")
    parser.add_argument("--shard", default="0/1", metavar="K/N", help="of every N-th, from the K-th on")
    parser.add_argument("--try", action="store_true", dest="trials", help="try every N-th test, and judge nothing")
    parser.add_argument("--seconds", type=float, default=60, help="of CPU for each mutant")
    parser.add_argument("--longest", type=float, default=30, help="leave out tests that take more CPU seconds")
    parser.add_argument("--state", type=Path, default=ROOT / ".mutants.jsonl", help="where results are kept")
    parser.add_argument("--quick", action="store_true", help="three mutants of each area")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    parser.add_argument("--report", action="store_true", help="print the tables of the results there are")
    parser.add_argument("--blame", action="store_true", help="whether stagefold.blame names the mutants' places")
    parser.add_argument("--programs", type=int, default=300, help="how many are drawn for --blame")
    parser.add_argument("--symbols", action="store_true", help="programs at symbolic sizes for --blame")
    options = parser.parse_args()
    options.count = 3 if options.quick else options.count
    return options


if __name__ == "__main__":
    sys.exit(main())
