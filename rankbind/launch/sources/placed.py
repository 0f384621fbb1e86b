"""Text that knows where each of its characters stands, through quotes, escapes and expansions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rankbind.launch.command import Word
from rankbind.source import Document, Span

LARGEST = 1 << 20
"""No file with more characters is read."""

LONGEST = 1 << 16
"""No word and no value is longer: what grows beyond it (``A=$A$A``) is not told."""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text.

    Attributes:
        starts: for each character, where in `document` what it stands for begins; `stops`: where that ends.
        start: where all of it begins, quotes included; `stop`: where it ends.
        doubts: the stretches of `text`, first and one past the last, that may not be what is there at run time.
        opaque: nothing of it is known; `text` is how it is written.
    """

    document: Document
    text: str
    starts: Sequence[int]
    stops: Sequence[int]
    start: int
    stop: int
    doubts: tuple[tuple[int, int], ...] = ()
    opaque: bool = False

    @property
    def sure(self) -> bool:
        """Whether `text` is what it will be at run time."""
        return not self.doubts

    @property
    def span(self) -> Span:
        """Where it stands."""
        return self.document.span(self.start, self.stop)

    def word(self) -> Word:
        """As a word of a command."""
        return Word(self.text, self.span, self.sure)

    def part(self, first: int, stop: int) -> Text:
        """The characters from `first` to `stop`."""
        starts, stops = self.starts[first:stop], self.stops[first:stop]
        doubts = tuple(
            (max(a, first) - first, min(b, stop) - first)
            for a, b in self.doubts
            if (a < stop and b > first) or first <= a == b <= stop
        )
        if not starts:
            at = self.starts[first] if first < len(self.starts) else self.stop
            return Text(self.document, "", (), (), at, at, doubts)
        return Text(self.document, self.text[first:stop], starts, stops, starts[0], stops[-1], doubts)

    def saying(self, text: str, *, sure: bool = True) -> Text:
        """Another text in its place."""
        size = len(text)
        doubts = () if sure else ((0, size),)
        return Text(self.document, text, [self.start] * size, [self.stop] * size, self.start, self.stop, doubts)

    def moved(self, to: Text) -> Text:
        """The same text in the place of another."""
        size = len(self.text)
        return Text(to.document, self.text, [to.start] * size, [to.stop] * size, to.start, to.stop, self.doubts)

    def unknown(self) -> Text:
        """The same as written, and nothing known of it."""
        return replace(self, doubts=((0, len(self.text)),), opaque=True)


def whole(document: Document) -> Text:
    """All of a document."""
    size = len(document.text)
    return Text(document, document.text, range(size), range(1, size + 1), 0, size)


def joined(parts: Iterable[Text], at: Text) -> Text:
    """The parts as one text that stands where `at` does."""
    texts: list[str] = []
    starts: list[int] = []
    stops: list[int] = []
    doubts: list[tuple[int, int]] = []
    for part in parts:
        doubts += [(a + len(starts), b + len(starts)) for a, b in part.doubts]
        same = part.document is at.document
        starts += part.starts if same else [at.start] * len(part.text)
        stops += part.stops if same else [at.stop] * len(part.text)
        texts.append(part.text)
    if len(starts) > LONGEST:
        return at.unknown()
    return Text(at.document, "".join(texts), starts, stops, at.start, at.stop, tuple(doubts))


def split(text: Text) -> list[Text] | None:
    """The words of a line as a shell without expansions splits it; None where a quote is not closed."""
    found: list[Text] = []
    parts: list[Text] = []
    begin = -1
    quote = ""
    at = 0
    value = text.text
    while at < len(value):
        char = value[at]
        width = 1
        if begin < 0 and not char.isspace():
            begin = at
        if quote:
            if char == quote:
                quote = ""
            elif char == "\\" and quote == '"' and value[at + 1 : at + 2] in ('"', "\\"):
                parts.append(text.part(at + 1, at + 2))
                width = 2
            else:
                parts.append(text.part(at, at + 1))
        elif char in "'\"":
            quote = char
        elif char == "\\" and at + 1 < len(value):
            width = 2
            if value[at + 1] == "\n":  # a line that goes on
                begin = -1 if begin == at else begin
            else:
                parts.append(text.part(at + 1, at + 2))
        elif char.isspace():
            if begin >= 0:
                found.append(joined(parts, text.part(begin, at)))
            begin, parts = -1, []
        else:
            parts.append(text.part(at, at + 1))
        at += width
    if quote:
        return None
    if begin >= 0:
        found.append(joined(parts, text.part(begin, len(value))))
    return found
