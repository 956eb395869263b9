"""Makes the front page: a card for each ladder, what is new, what is in doubt, and the verdicts on claims."""

from collections.abc import Mapping, Sequence

from suite.board.groups import Leaderboard
from suite.board.news import Addition
from suite.board.site import profile, text
from suite.board.site.claims import group_by_outcome
from suite.board.site.drawing import Draw
from suite.board.site.views import SectionView
from suite.claims.standing import Standing

MOST_LADDERS = 80  # about 5 kB each
MOST_NEWS = 6  # commits


def render_front(
    draw: Draw,
    leaderboard: Leaderboard,
    views: Sequence[SectionView],
    links: Mapping[str, str],
    standings: Sequence[Standing],
    news: Sequence[Addition],
    tasks: Mapping[str, str],
) -> str:
    """Return the front page.

    Args:
        draw: fills a template.
        leaderboard: all groups and results.
        views: the ladders.
        links: the address of each ladder, by its id.
        standings: what is known about the claims.
        news: the commits that added results, the newest first.
        tasks: the address of each task's first page.
    """
    ordered = sorted(views, key=lambda view: view.section.order)  # stable: by task among equals
    shown = ordered[:MOST_LADDERS]
    overview = profile.make_overview([view.section for view in views])
    return draw(
        "index.html.j2",
        root="",
        tasks=tasks,
        current=None,
        leaderboard=leaderboard,
        cards=[view for view in shown if view.is_contested],
        others=[view for view in shown if not view.is_contested],
        more_ladders=len(ordered) - len(shown),
        links=links,
        news=news[:MOST_NEWS],
        reasons=list_reasons(views),
        outcomes=group_by_outcome(standings),
        overview=overview,
        profile=profile.draw_profiles(overview) if overview else "",
    )


def list_reasons(views: Sequence[SectionView]) -> dict[str, list[SectionView]]:
    """Return the ladders in doubt, by the reason."""
    current = [view for view in views if not view.section.hardest.superseded_by]
    contested = [(view, view.section.main) for view in current if view.section.main and view.is_contested]
    ran = {view.section.hardest.design for view in views for contest in view.section.contests if contest.looks}
    reasons = {
        "Superseded by a newer version of the task": [view for view in views if view.section.hardest.superseded_by],
        "Registered, but not run as registered": [
            view for view in views if view.section.hardest.design not in (None, *ran)
        ],
        "Too few seeds to rank": [view for view, main in contested if text.has_few_seeds(main)],
        "Optimizers that are not ranked: fewer than three seeds, or no seed reached the target": [
            view for view, main in contested if any(one.kind == "not ranked" for one in main.competitors)
        ],
        "Late seeds or misses: the ranks are less certain than 95 %": [
            view for view, main in contested if any(one.irregular for one in main.competitors)
        ],
        "Rows made with uncommitted changes": [
            view for view in current if any(row.dirty for row in view.section.hardest.entries)
        ],
        "A search for settings that has not converged": [
            view
            for view in current
            if any(row.tuning.get("converged") is False for row in view.section.hardest.entries)
        ],
        "Doubts of readers": [view for view in current if view.doubts],
    }
    return {reason: ladders for reason, ladders in reasons.items() if ladders}
