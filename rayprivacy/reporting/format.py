"""How the page writes numbers: one function per kind of figure, so that columns line up."""

import re

from markupsafe import Markup

EQUATION = re.compile(r"(\w+ = \S+)")
PARTS = (Markup("{}"), Markup('<span class="unbroken">{}</span>'))
NONE = "\u2013"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
MARKUP = re.compile(r"([\\`*_\[\]<>|~#&$])")


def number(value: float | None) -> str:
    """A parameter to at most four significant digits, as privacy statements write it: 3, 1e-06."""
    return NONE if value is None else f"{value:.4g}"


def figure(value: float | None) -> str:
    """A measured figure with two decimals, as 1,234.50."""
    return NONE if value is None else f"{value:,.2f}"


def whole(value: int) -> str:
    """A count with thousands separated, as 12,000."""
    return f"{value:,}"


def percent(value: float | None) -> str:
    """A share between 0 and 1 as a percentage, 0.0125 as 1.2%."""
    return NONE if value is None else f"{100 * value:.1f}%"


def duration(seconds: float) -> str:
    """Seconds as a person would say them.

    >>> duration(4.21), duration(312), duration(7500)
    ('4.2 s', '5 min 12 s', '2 h 05 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def unbroken(text: str) -> Markup:
    """Escape a sentence and keep each "name = value" on one line.

    >>> unbroken("a < b, delta = 1e-06 here")
    Markup('a &lt; b, <span class="unbroken">delta = 1e-06</span> here')
    """
    parts = (PARTS[i % 2].format(part) for i, part in enumerate(EQUATION.split(text)))
    return Markup("").join(parts)


def one_line(text: str) -> str:
    """Without line breaks and control characters.

    >>> one_line("a\\n---\\tb")
    'a --- b'
    """
    return CONTROL.sub("\ufffd", " ".join(text.split()))


def markdown(text: str) -> str:
    """A piece of text for a line of Markdown, where it means nothing but itself.

    >>> markdown("<b> of *release*")
    '\\\\<b\\\\> of \\\\*release\\\\*'
    """
    return MARKUP.sub(r"\\\1", one_line(text))
