"""The chaos suite by command.

    python -m tests.chaos [--faults 200] [--seconds 3600] [--seed K] [--kinds a,b] [--hosts]   random faults under load
    python -m tests.chaos kills [--count 50] [--seed K]     kill -9 at random words of an answer of 2,000
    python -m tests.chaos soak [--minutes 30]               does anything grow?

Owns: the commands, their options, and how what they find is told. Exit code 1 when something is not as it must be.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.counted_house import CountedHouse
from tests.chaos.faults import KINDS, THROUGH_A_NETWORK
from tests.chaos.hosts import move_in, why_not
from tests.chaos.judge import OUTCOMES, Findings, percentile
from tests.chaos.kills import house_for_kills, kills
from tests.chaos.run import Plan, Report, house_in, house_of, run
from tests.chaos.soak import Slope, soak

SAVED = {"bytes_per_token": 64}  # so that the stand-in's slots can be saved, too


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    parser = _options()
    options = parser.parse_args(arguments)
    if options.hosts:
        if reason := why_not():
            parser.error(f"--hosts: this machine lets us have no network namespaces: {reason}")
        move_in(arguments)
    with tempfile.TemporaryDirectory(prefix="corral-chaos-", ignore_cleanup_errors=True) as name:
        return int(options.command(Path(name), options))


def faults(folder: Path, options: argparse.Namespace) -> int:
    """Random faults under load."""
    plan = Plan(options.kinds, options.faults, options.seconds, options.seed)
    say(f"seed {plan.seed}, kinds {', '.join(plan.kinds)}")
    wants = {"flower": "kill-flower" in plan.kinds, "cuttable": bool(THROUGH_A_NETWORK.intersection(plan.kinds))}
    wants["hosts"] = options.hosts
    with house_in(folder / "0", **wants, slots=6, api_count=2, standin=SAVED) as house:
        report = run(house, plan, say)
    tell(report)
    return 0 if report.findings.good else 1


def kill(folder: Path, options: argparse.Namespace) -> int:
    """kill -9 at random words."""
    say(f"seed {options.seed}")
    with house_for_kills(folder / "0") as house:
        done = kills(house, options.count, options.seed, lambda one: say(str(one)))
    wrong = [one for one in done if one.wrong]
    again = sum(one.attempts > 1 for one in done)
    say(f"{len(done)} answers of {again} begun again, {len(wrong)} not equal to the undisturbed one")
    return 1 if wrong else 0


def soaking(folder: Path, options: argparse.Namespace) -> int:
    """Load for a while, and slopes."""
    with house_of(CountedHouse, folder / "0", slots=6, standin=SAVED) as house:
        slopes, findings = soak(house, options.minutes, agents=6, say=say)
    for slope in slopes:
        say(f"{'ok' if slope.good else 'RISES':6} {slope.name:18} mean {slope.mean:8.1f} rise {slope.rise:+8.2f}")
    _tell_findings(findings)
    return 0 if findings.good and all(map(_is_good, slopes)) else 1


def tell(report: Report) -> None:
    """The report of random faults in lines."""
    findings = report.findings
    say(f"faults {len(report.faults)}; " + ", ".join(f"{kind} {findings.count(kind)}" for kind in OUTCOMES))
    for kind in KINDS:
        if times := report.recovery_s(kind):
            shares = f"p50 {percentile(times, 0.5):5.1f} s p95 {percentile(times, 0.95):5.1f} s"
            say(f"{kind:14} {len(times):4} alone, {shares}")
    _tell_findings(findings)


def say(words: str) -> None:
    print(words, flush=True)


def _tell_findings(findings: Findings) -> None:
    say(f"answered {findings.answered}, tools run {findings.calls_run}")
    say(f"lost {len(findings.lost)}, wrong {len(findings.wrong)}, left {len(findings.left)}")
    for words in [*findings.lost, *findings.wrong, *findings.left]:
        say(f"! {words}")
    for asking in findings.askings:
        if asking.outcome == "told":
            say(f"told: {asking.who} {asking.detail}")


def _is_good(slope: Slope) -> bool:
    return slope.good


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(text.split(","))
    if unknown := sorted(set(kinds) - set(KINDS)):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(KINDS)}")
    return kinds


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Kill anything, lose nothing.")
    parser.set_defaults(command=faults)
    parser.add_argument("--faults", type=int, default=200, help="how many")
    parser.add_argument("--seconds", type=float, default=3600, help="begin none later than this")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same seed, the same faults")
    parser.add_argument("--kinds", type=_kinds, default=tuple(KINDS), help=f"of {','.join(KINDS)}")
    words = "each worker on a host of its own, whose cable cut-worker pulls: needs network namespaces, but no root"
    parser.add_argument("--hosts", action="store_true", help=words)
    commands = parser.add_subparsers()
    killing = commands.add_parser("kills", help="kill -9 at random words of an answer of 2,000")
    killing.set_defaults(command=kill)
    killing.add_argument("--count", type=int, default=50, help="how many answers")
    killing.add_argument("--seed", type=int, default=int(time.time()), help="the same seed, the same words")
    growing = commands.add_parser("soak", help="does anything grow?")
    growing.set_defaults(command=soaking)
    growing.add_argument("--minutes", type=float, default=30, help="of load; the first third is warm-up")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
