"""Fills the templates of the site. Every value is escaped, except the pictures and tables that the site itself made."""

from collections.abc import Callable

from suite.board.site import text
from suite.board.site.claims import SIGNS, choose_tone

Draw = Callable[..., str]  # fills the template of this name with values


def load_templates() -> Draw:
    """A function that fills a template of suite/board/templates/."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("suite.board"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "number": text.format_number,
        "median": text.format_median,
        "interval": text.format_interval,
        "steps": text.format_steps,
        "ratio": text.format_ratio,
        "size": text.format_size,
        "value": text.format_value,
        "sort_value": text.sort_value,
        "tone": choose_tone,
        "sign": SIGNS.__getitem__,
    }
    return lambda name, **values: environment.get_template(name).render(**values)
