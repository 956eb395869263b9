"""WMT's SGM files: sentences of two languages, matched by document and segment id."""

import html
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from suite.contract import UserError

TAG = re.compile(r"<(?P<end>/?)(?P<name>\w+)(?P<attributes>[^<>]*)>|<[!?][^>]*>")
ATTRIBUTE = re.compile(r"""(\w+)\s*=\s*(?:"([^"]*)"|'([^']*)'|(\S+))""")
Key = tuple[str, str]  # document and segment
Lines = Iterable[tuple[str, str]]  # each line's text, and the reason why it cannot be read


class Segment(NamedTuple):
    """One sentence, the line where it begins, and the reason why it cannot be read."""

    text: str
    line: int
    fault: str


def read_pairs(
    source: tuple[Path, Lines], reference: tuple[Path, Lines], skipped: list[str] | None
) -> Iterator[tuple[str, str]]:
    """Yield the sentence pairs of two files, in the order of the first.

    Args:
        source: path and lines of one file.
        reference: of the other.
        skipped: receives a note for each pair that cannot be read; None raises an error at the first one.

    Raises:
        UserError: for such a pair, for a segment that only one file has, and for anything that is not understood.
    """
    first, second = (read_segments(*file) for file in (source, reference))
    for mine, others, (path, _), (other, _) in ((first, second, source, reference), (second, first, reference, source)):
        if lonely := next((key for key in mine if key not in others), None):
            document, number = lonely
            raise UserError(
                f"{path}, line {mine[lonely].line}: segment {number} of document {document!r} is not in {other}; "
                "both files must have the same segments"
            )
    for key, segment in first.items():
        if fault := segment.fault or second[key].fault:
            if skipped is None:
                raise UserError(f"{fault}; repair it, or skip such pairs with task.on_error=skip")
            skipped.append(fault)
            continue
        yield segment.text, second[key].text


def read_segments(path: Path, lines: Lines) -> dict[Key, Segment]:
    """Read all segments of a file, which may share a line or continue on the next.

    As in fairseq's prepare-wmt14en2fr.sh, ’ becomes '. Entities (&quot;) become characters.

    Raises:
        UserError: for a segment without an id or an end, a repeated id, and text outside of segments.
    """
    texts, faults = zip(*lines, strict=True) if (lines := list(lines)) else ((), ())
    whole, segments = "\n".join(texts), dict[Key, Segment]()
    document, opened, began, at = "", None, 0, 0

    def fail(place: int, cause: str) -> UserError:
        return UserError(f"{path}, line {whole.count(chr(10), 0, place) + 1}: {cause}; repair the file")

    for tag in [*TAG.finditer(whole), None]:
        begin, end = tag.span() if tag else (len(whole), len(whole))
        name = (tag["name"] or "").lower() if tag else "end of the file"
        values = (
            {key.lower(): "".join(rest) for key, *rest in ATTRIBUTE.findall(tag["attributes"] or "")} if tag else {}
        )
        if opened is None:
            between = whole[at:begin]
            if between.strip():
                raise fail(at + len(between) - len(between.lstrip()), f"{between.split()[0]!r} is outside of <seg>")
            if tag and name == "seg" and not tag["end"]:
                if not values.get("id"):
                    raise fail(begin, "<seg> without an id")
                if (document, values["id"]) in segments:
                    raise fail(begin, f"segment {values['id']} of document {document!r} is there twice")
                opened, began = values["id"], begin
            elif name == "seg":
                raise fail(begin, "</seg> without a <seg>")
            document = values.get("docid", document) if name == "doc" else document
            at = end
        elif tag and name == "seg" and tag["end"]:
            text = html.unescape(" ".join(whole[whole.index(">", began) + 1 : begin].split())).replace("’", "'")
            line, last = (whole.count("\n", 0, place) for place in (began, begin))
            segments[document, opened] = Segment(text, line + 1, next(filter(None, faults[line : last + 1]), ""))
            opened, at = None, end
        elif not tag or name in ("seg", "p", "doc", "hl", "refset", "srcset", "tstset"):
            raise fail(began, f"segment {opened} of document {document!r} has no </seg>")
    if wrong := next((fault for fault in faults if fault and not any(s.fault == fault for s in segments.values())), ""):
        raise UserError(f"{wrong}; repair the file")
    return segments
