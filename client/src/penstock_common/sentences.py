"""Ends of sentences among words: marks, the rules of sentencex, and additions for five languages.

Knows no times. Without sentencex, which has no wheel for some platforms, marks and the additions decide alone.
"""

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeVar

from penstock_common.results import Word
from penstock_common.writing import SENTENCE_ENDS, blank_between, is_mark, is_unspaced

try:
    from sentencex import get_sentence_boundaries
except ImportError:
    get_sentence_boundaries = None

AnyWord = TypeVar("AnyWord", bound=Word)
_CLOSING = "\"'\u201c\u201d\u2018\u2019\u00ab\u00bb\u2039\u203a)]\u300d\u300f\uff09"
"""May follow the mark at the end of a sentence."""
_ELLIPSES = ("...", "\u2026")
_MARKS = (*SENTENCE_ENDS, *"\u2026\u06d4\u0589\u1362\u104b\u17d4\u0f0d")
"""Also of Urdu, Armenian, Amharic, Burmese, Khmer, Tibetan."""
_ORDINAL = re.compile("[0-9]{1,2}|[ivx]+")
_SHORT = re.compile(r"[^\W\d_]|(?![ap]\.m$).*\..*")
"""Initials and dotted words, but a time: a sentence may go on behind "5 p.m.", and the library tells it."""
_FIRST = re.compile(r"^\W*(?!\w\.)(\w+)")
"""The first part of a word, such as "Qu" of "Qu'il"; none of an initial."""


class _Rules(NamedTuple):
    """Words of a language in lower case, without their periods: what sentencex lacks, and the most frequent.

    No sentence ends with a title, nor with a word of `numbered` before a number, and with abbreviations and initials
    only before an opener, a capitalized word that begins sentences.
    """

    titles: frozenset[str]
    numbered: frozenset[str]
    abbreviations: frozenset[str]
    openers: frozenset[str]


_RULES = {
    language: _Rules(*(frozenset(words.split()) for words in text.split("|")))
    for language, text in {
        "en": """
            mr mrs ms dr prof st | no vol ch p | approx est hrs inc jr lbs mi mins oz vs | a an and are as at but can
            could did do does for he her here his how i if in is it let maybe my no not now on or our she so that the
            then there these they this was we were what when where who why will would yes you""",
        "de": """
            hr fr dr prof dipl st | nr s bd | bzw ca inkl jh usw zzgl | aber als am an auf bei bitte da danach danke
            dann das dem den der die dies du ein eine er es für hat heute hier ich ihr im in ist ja jetzt kein man
            mein mit nach nein nun oder sein sie siehe so und vielleicht von vor wann warum was wenn wer wie wir zu""",
        "fr": """
            m mm mme mmes mlle me mgr dr pr prof st ste | n no nos art | av bd h kg km min | alors après au avec c ce
            ces cette comme comment d dans de des elle elles en est et il ils ici j je l la le les mais merci mon n
            non nous on où ou oui par pour puis qu quand que qui sa sans si son sur tu un une vous ça à""",
        "es": """
            sr sra d dña dr dra prof profa | n núm pág | aprox av ud uds | ahora al aquí ayer como con cuando cómo de
            del después dónde el ella ellos en entonces era es esta este esto está fue gracias hay hoy la las lo los
            luego mañana mi no o para pero por pues que quizás qué si sin son su sus sí también un una y yo""",
        "it": """
            sig dott prof dr avv ing | n nn pag pagg art | kg km | adesso al allora c che chi come con cosa di domani
            dopo dove e forse gli grazie ha hanno i ieri il in io la le lei lo loro lui ma mi mio no noi non o oggi
            ora per perché poi quale quando quella quello questa questo qui se si sono sì tu un una voi è era""",
    }.items()
}


def sentences(words: Sequence[AnyWord], language: str = "") -> list[list[AnyWord]]:
    """The words of one segment, a list per sentence; a text without marks is one.

    language: a code such as "de" or "de-DE"; others, as "" and "auto", have the rules of English.
    """
    code = language.replace("_", "-").partition("-")[0].lower()
    texts = [word.text for word in words]
    ends = [*_ends(texts, code if len(code) in (2, 3) else "en"), len(texts)]
    return [list(words[begin:end]) for begin, end in pairwise([0, *ends]) if begin < end]


def _ends(texts: Sequence[str], code: str) -> list[int]:
    """The numbers of words before and with the end of a sentence, without the last one."""
    pieces = [text + blank_between(text, after) for text, after in pairwise([*texts, ""])]
    whole = "".join(pieces)
    if not any(mark in whole for mark in _MARKS):
        return []
    borders = {each["end_index"] for each in get_sentence_boundaries(code, whole)} if get_sentence_boundaries else None
    ends, word, is_cased, characters = [], "", whole != whole.lower(), accumulate(map(len, pieces))
    for count, (text, following) in enumerate(pairwise(texts), 1):
        word = word + text if is_mark(text) else text  # a mark may stand alone, as in French
        is_border = next(characters) in borders if borders is not None else True
        if not is_mark(following) and _is_end(word, following, is_border, is_cased, _RULES.get(code)):
            ends.append(count)
    return ends


def _is_end(text: str, following: str, is_border: bool, is_cased: bool, rules: _Rules | None) -> bool:
    """True where a sentence ends with the word `text`. is_border: the library's view."""
    word = text.rstrip(_CLOSING)
    if not word.endswith(_MARKS):
        return False
    (opener,) = _FIRST.findall(following)[:1] or [""]
    if is_unspaced(word[-1]) or (is_cased and opener[:1].islower()):
        return is_unspaced(word[-1])
    is_open = word.endswith((".", "\u2026"))
    if rules is None or not is_open:
        return is_border or not is_open
    is_opener = opener[:1].isupper() and opener.lower() in rules.openers
    if word.endswith(_ELLIPSES):
        return is_opener and opener != "I"
    core = re.split("['\u2019]", word[:-1].lower().lstrip("\"'(\u201c\u201e\u00ab\u00bf\u00a1"))[-1]
    if core in rules.titles or is_opener:
        return core not in rules.titles
    if core in rules.numbered and following[:1].isdigit():
        return False
    if core in ("etc", "ecc"):
        return rules is not _RULES["de"]  # where a noun may follow
    is_ordinal = rules is _RULES["de"] and _ORDINAL.fullmatch(core)
    return is_border and not (is_ordinal or _SHORT.fullmatch(core) or core in rules.abbreviations)
