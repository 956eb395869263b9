"""Performance profile of the front page: on which share of the ladders an optimizer is nearly the best."""

from collections.abc import Sequence
from dataclasses import dataclass

from suite import svg
from suite.board.rows import rank_median
from suite.board.sections import Section
from suite.statistics.profiles import TAU_MAX, Profile, compute_profiles

WIDTH, HEIGHT, LEFT, RIGHT, TOP, FOOT = 480, 260, 40, 120, 10, 36
LEAST_LADDERS = 3  # with fewer a share says little
MOST_METHODS = 8  # as many as there are colours and dashes in the style sheet
LABEL_HEIGHT = 15


@dataclass(frozen=True)
class Overview:
    """Profiles over ladders in one backend."""

    backend: str
    ladders: tuple[str, ...]
    profiles: dict[str, Profile]  # by optimizer, best score first
    left_out: tuple[str, ...]  # optimizers that were run on less than half of the ladders


def make_overview(sections: Sequence[Section]) -> Overview | None:
    """Profile all optimizers; return None if fewer than `LEAST_LADDERS` tuned, current ladders have several."""
    current = [section for section in sections if not section.hardest.superseded_by]
    contested = [section for section in current if section.hardest.tuned and section.hardest.target]
    backends = [str(row.backend) for section in contested if section.main for row in section.main.rows]
    if not backends:
        return None
    backend = max(sorted(set(backends), reverse=True), key=backends.count)
    times: dict[str, dict[str, float | None]] = {}
    ladders = []
    for section in contested:
        rows = [row for row in section.main.rows if row.backend == backend] if section.main else []
        if len({row.optimizer for row in rows}) < 2:
            continue
        ladder = f"{section.hardest.task} {section.hardest.name}"
        ladders.append(ladder)
        for row in sorted(rows, key=lambda row: rank_median(row.steps)):  # the first row of an optimizer is its best
            if row.steps is not None and rank_median(row.steps) > 0:
                times.setdefault(row.optimizer, {}).setdefault(ladder, rank_median(row.steps))
    if len(ladders) < LEAST_LADDERS:
        return None
    shown = {
        name: profile for name, profile in compute_profiles(times).items() if 2 * len(profile.ratios) >= len(ladders)
    }
    order = sorted(shown, key=lambda name: (-(shown[name].score or 0.0), name))[:MOST_METHODS]
    left_out = tuple(sorted(set(times) - set(order)))
    return Overview(backend, tuple(ladders), {name: shown[name] for name in order}, left_out)


def draw_profiles(overview: Overview) -> str:
    """Draw the profiles, with each line's name at its end."""
    x = svg.Scale(1, TAU_MAX, LEFT, WIDTH - RIGHT)
    y = svg.Scale(0, 1, HEIGHT - FOOT, TOP)
    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(svg.draw_line(LEFT, y(share), WIDTH - RIGHT, y(share), "grid"))
        parts.append(svg.draw_text(LEFT - 5, y(share) + 4, f"{share:.0%}", "tick", "end"))
    parts += [svg.draw_text(x(tau), HEIGHT - FOOT + 15, f"{tau} ×", "tick", "middle") for tau in (1, 2, 3, 4)]
    parts.append(
        svg.draw_text(WIDTH - RIGHT, HEIGHT - 4, "steps, as a multiple of the best optimizer's", "tick", "end")
    )
    ends = {name: profile.share(TAU_MAX) for name, profile in overview.profiles.items()}
    heights = _spread([y(share) for share in ends.values()])
    for index, (name, profile) in enumerate(overview.profiles.items()):
        label = f"{name} ({len(profile.ratios)}/{len(overview.ladders)})"
        lines = svg.draw_curve(_corners(profile, x, y), "profile")
        lines += svg.draw_line(x.end, y(ends[name]), x.end + 8, heights[index] - 4, "profile")
        parts.append(
            f'<g class="series s{index}">{lines}{svg.draw_text(x.end + 11, heights[index], label, "series-name")}</g>'
        )
    return svg.draw_picture(WIDTH, HEIGHT, "Performance profile of the optimizers over the ladders", parts)


def _corners(profile: Profile, x: svg.Scale, y: svg.Scale) -> list[tuple[float, float]]:
    corners: list[tuple[float, float]] = []
    for tau, share in profile.points(TAU_MAX):
        if corners:
            corners.append((x(tau), corners[-1][1]))
        corners.append((x(tau), y(share)))
    return corners


def _spread(heights: Sequence[float]) -> list[float]:
    """Heights of labels, moved apart so that none covers another, and kept inside the picture."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    placed = [0.0] * len(heights)
    lowest = TOP + 4.0
    for index in order:
        placed[index] = max(heights[index] + 4, lowest)
        lowest = placed[index] + LABEL_HEIGHT
    overshoot = max(0.0, lowest - LABEL_HEIGHT - (HEIGHT - FOOT))
    return [height - overshoot for height in placed]
