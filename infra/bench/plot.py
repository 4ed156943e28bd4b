"""A picture of the time to first token over the turns of a conversation, one line an arm.

Owns: the drawing, and what is said where the library for it is missing.
Never: measures. matplotlib is an extra (`plots`) and is loaded only when something is to be drawn.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.bench.report import Figures, percentile
from infra.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg")
COLOURS = ("#0b62a4", "#c8511b", "#2a8c6f", "#8f4fa8", "#a58300", "#5a5a5a")  # told apart by colour-blind people too
MARKERS = ("o", "s", "^", "D", "v", "P")
INK, FAINT, PAPER = "#22272e", "#8a929c", "#ffffff"
WIDTH_IN, HEIGHT_IN, DOTS_PER_IN = 9.0, 5.2, 160
LOG_FROM = 12  # times from the least to the most median; beyond it a straight scale flattens the small ones
NEAR = 0.045  # of the height: labels of lines that end closer than this are moved apart
LETTER = 0.0092  # of the width: one of a label's
SECONDS_FROM_MS = 2_000
MOST_TICKS = 16


class Line:
    """One arm: for each turn the median of its times in ms, and the quartiles as its band."""

    def __init__(self, turns: Sequence[Sequence[float]]) -> None:
        full = [(number, times) for number, times in enumerate(turns, 1) if times]
        self.turns = [number for number, _ in full]
        self.low, self.middle, self.high = (
            [percentile(times, share) for _, times in full] for share in (0.25, 0.5, 0.75)
        )


def check(path: Path) -> None:
    """Raises ConfigError when nothing could be drawn there, or not at all."""
    if path.suffix and path.suffix not in SUFFIXES:
        raise ConfigError(f"--plot {path}: must end in .png or .svg, or in neither for both")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no folder {path.parent}")
    try:
        import matplotlib  # noqa: F401, PLC0415
    except ImportError:
        raise ConfigError("--plot: needs matplotlib; `pip install 'corral[plots]'`, or in a clone '.[plots]'") from None


def lines(runs: Mapping[str, Sequence[Figures]]) -> dict[str, Line]:
    """Each arm's line over all its rounds; none for an arm where no turn was answered."""
    found = {}
    for name, rounds in runs.items():
        count = max((len(run["first_ms_of_turns"]) for run in rounds), default=0)
        turns = [
            [ms for run in rounds for ms in (run["first_ms_of_turns"][number : number + 1] or [[]])[0]]
            for number in range(count)
        ]
        if any(turns):
            found[name] = Line(turns)
    return found


def draw(path: Path, runs: Mapping[str, Sequence[Figures]], about: str) -> list[Path]:
    """Write the picture; a path without .png or .svg gives both. Returns the files, none when nobody answered.

    Raises ConfigError as `check`.
    """
    check(path)
    arms = lines(runs)
    if not arms:
        return []
    from matplotlib import rc_context  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    look: Any = {"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10, "text.color": INK}
    with rc_context(look):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DOTS_PER_IN, facecolor=PAPER)
        room = min(0.4, 0.03 + LETTER * max(map(len, _labels(arms).values())))
        axes = figure.add_axes((0.085, 0.13, 0.9 - room, 0.71))
        _lines(axes, arms)
        _frame(axes, arms)
        figure.text(0.02, 0.945, "Time to first token, turn by turn", fontsize=15, fontweight="bold")
        figure.text(0.02, 0.895, f"{about}; median, band: middle half", fontsize=9, color=FAINT)
        files = [path] if path.suffix else [path.with_name(path.name + suffix) for suffix in SUFFIXES]
        told = f"Time to first token over turns: {', '.join(arms)}"
        for file in files:
            figure.savefig(file, metadata={"Title": told, "Description": about})
    return files


def _lines(axes: "Axes", arms: Mapping[str, Line]) -> None:
    for index, arm in enumerate(arms.values()):
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        axes.fill_between(arm.turns, arm.low, arm.high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(
            arm.turns, arm.middle, color=colour, linewidth=2.2, marker=marker, markersize=5.5, markeredgecolor=PAPER
        )


def _frame(axes: "Axes", arms: Mapping[str, Line]) -> None:
    """Scales, grid, and each arm's name at the end of its line."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator  # noqa: PLC0415

    middles = [ms for arm in arms.values() for ms in arm.middle]
    highest = max(max(arm.high) for arm in arms.values())
    seconds = _in_seconds(arms)
    if max(middles) > LOG_FROM * max(min(middles), 0.1):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, highest * 1.08)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda ms, _: _written(ms, seconds)))
    turns = sorted({turn for arm in arms.values() for turn in arm.turns})
    if len(turns) <= MOST_TICKS:
        axes.set_xticks(turns)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("turn of a main line", color=FAINT, loc="left")
    axes.grid(axis="y", color="#e6e9ed", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=FAINT, length=0, labelcolor=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#c9ced6")
    _names(axes, arms)


def _names(axes: "Axes", arms: Mapping[str, Line]) -> None:
    """Where lines end close together their names are moved apart, upwards, so that each can be read."""
    ends = {
        name: float(axes.transAxes.inverted().transform(axes.transData.transform((arm.turns[-1], arm.middle[-1])))[1])
        for name, arm in arms.items()
    }
    numbers, labels = {name: index for index, name in enumerate(arms)}, _labels(arms)
    lowest = -1.0
    for name in sorted(ends, key=lambda name: ends[name]):
        lowest = max(ends[name], lowest + NEAR)
        colour = COLOURS[numbers[name] % len(COLOURS)]
        axes.text(1.015, lowest, labels[name], transform=axes.transAxes, color=colour, fontweight="bold", va="center")


def _labels(arms: Mapping[str, Line]) -> dict[str, str]:
    """Each arm's name and its last median."""
    seconds = _in_seconds(arms)
    return {name: f"{name}  {_written(arm.middle[-1], seconds)}" for name, arm in arms.items()}


def _in_seconds(arms: Mapping[str, Line]) -> bool:
    return max(max(arm.high) for arm in arms.values()) >= SECONDS_FROM_MS


def _written(ms: float, seconds: bool) -> str:
    if seconds:
        return f"{ms / 1000:.3g} s"
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.3g} ms"
