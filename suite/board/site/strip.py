"""Picture of one contest on the front page: a line for each competitor, with its ratio and its possible ranks."""

import math
from collections.abc import Sequence

from suite import svg
from suite.board.contest import Competitor, Contest
from suite.board.site.text import describe_place

WIDTH, LEFT, RIGHT, TOP, LINE, FOOT, GAP = 320, 82, 48, 18, 18, 20, 8
MOST_LINES = 10  # the task's page has all
LEAST, MOST = 1 / 8, 64  # ends of the axis, as ratios


def draw_strip(contest: Contest) -> str:
    """Draw the steps of each competitor as a ratio to the first one's, on a logarithmic axis.

    Tiers are apart. An arrow marks an interval that goes on beyond the axis, or that has no end.

    Returns:
        The picture; it is empty if fewer than two competitors are ranked, or no median seed reached the target.
    """
    shown = contest.ranked[:MOST_LINES]
    if len(shown) < 2 or all(one.missed for one in shown):
        return ""
    first, tiers = shown[0].optimizer, sorted({one.tier for one in shown})
    low, high = _range(shown)
    scale = svg.Scale(math.log(low), math.log(high), LEFT, WIDTH - RIGHT)
    bottom = TOP + LINE * len(shown) + GAP * (len(tiers) - 1)
    parts = [svg.draw_text(LEFT, 11, f"× the steps of {svg.shorten_text(first, 15)}", "tick")]
    parts.append(svg.draw_text(WIDTH, 11, "rank", "tick", "end"))
    for power in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1):
        x = scale(power * math.log(2))
        parts.append(svg.draw_line(x, TOP, x, bottom, "grid" if power else "one"))
        parts.append(svg.draw_text(x, bottom + 14, f"{2.0**power:g}", "tick", "middle"))
    for index, one in enumerate(shown):
        y = TOP + LINE * (index + 0.5) + GAP * tiers.index(one.tier)
        if index and one.tier != shown[index - 1].tier:
            parts.append(svg.draw_line(0, y - (LINE + GAP) / 2, WIDTH, y - (LINE + GAP) / 2, "tier"))
        parts.append(f'<g class="{one.kind.replace(" ", "-")}">{"".join(_line(one, scale, y))}</g>')
    places = (f"{one.optimizer}: {describe_place(one, first)}" for one in shown)
    return svg.draw_picture(WIDTH, bottom + FOOT, ". ".join(places), parts)


def _range(shown: Sequence[Competitor]) -> tuple[float, float]:
    """Return the ends of the axis: around 1 and all bounds."""
    ratios = [one.ratio for one in shown if one.ratio]
    ends = [end for ratio in ratios for end in (ratio.low, ratio.high) if 0 < end < math.inf]
    return max(LEAST, min([0.9, *(end / 1.2 for end in ends)])), min(MOST, max([2.1, *(end * 1.2 for end in ends)]))


def _line(one: Competitor, scale: svg.Scale, y: float) -> list[str]:
    ranks = f"{one.rank_low}" if one.rank_low == one.rank_high else f"{one.rank_low} to {one.rank_high}"
    parts = [svg.draw_text(0, y + 4, svg.shorten_text(one.optimizer, 12), "name")]
    parts.append(svg.draw_text(WIDTH, y + 4, ranks, "value", "end"))
    if one.ratio is None:
        return [*parts, svg.draw_diamond(scale(0), y, 5.5, "mark")]
    low, high = (_logarithm(end) for end in (one.ratio.low, one.ratio.high))
    # at an end of the axis, so much of the line is drawn that its arrow can be seen
    start, end = min(scale(low), scale.end - 14), max(scale(high), scale.start + 14)
    parts.append(svg.draw_line(start, y, end, y, "bar"))
    for outside, tip, back in ((low < scale.low, scale.start, 5), (high > scale.high, scale.end, -5)):
        if outside:
            parts.append(svg.draw_curve([(tip + back, y - 4), (tip, y), (tip + back, y + 4)], "arrow"))
    if one.ratio.estimate is not None:
        parts.append(svg.draw_circle(scale(_logarithm(one.ratio.estimate)), y, 4.5, "mark"))
    return parts


def _logarithm(ratio: float) -> float:
    return math.log(ratio) if ratio > 0 else -math.inf
