"""ARPA files of all toolkits are read; a broken one is rejected with its line and the reason."""

import bz2
import gzip
import lzma

import numpy as np
import pytest

from penstock.errors import PenstockError
from penstock.scoring.ngram import arpa
from penstock.scoring.ngram.arpa import LOG10_ZERO, Arpa, ArpaError, ArpaSection, read_arpa, write_arpa
from tests.helpers.ngram_golden import DIRECTORY, arpa_path
from tests.helpers.reference.ngram import NgramReference

KENLM = """\\data\\
ngram 1=4
ngram 2=2

\\1-grams:
-1.5\t<unk>\t0
0\t<s>\t-0.25
-1\t</s>
-0.5\ta\t-0.125

\\2-grams:
-0.75\t<s> a
-0.25\ta </s>

\\end\\
"""
SRILM = KENLM.replace("\\data", "\n\\data", 1).replace("0\t<s>", "-99\t<s>").replace("-1.5\t<unk>\t0", "-inf\tb")
IRSTLM = KENLM.replace("ngram 1=4", "ngram  1=       4").replace("\t", " ").replace("\n", "\r\n")
COMMENTED = "# made by hand\nan ARPA file\n\n" + KENLM.replace("\n-0.5", "\n\n-0.5") + "\n"


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("place", ["\\data", "\n\n\\1-grams", "-0.5\ta", "\\2-grams", "-0.25\ta", "\\end"])
@pytest.mark.parametrize(
    ("more", "found"), [(50 * "\n", "20 lines before it are no n-grams"), (900 * " " + "\n", "bytes for . n-grams")]
)
def test_lines_that_are_no_ngrams_are_bounded(tmp_path, monkeypatch, compress, place, more, found):
    """Wherever they are. N-grams are not: a header may count any number."""
    path = write(tmp_path, compress(KENLM.replace(place, more + place, 1).encode()))
    assert as_dictionary(read_arpa(path)) == EXPECTED
    monkeypatch.setattr(arpa, "MAX_OTHER_LINES", 20)
    monkeypatch.setattr(arpa, "MAX_OTHER_BYTES", 200)
    monkeypatch.setattr(arpa, "_MAX_NGRAM_BYTES", 100)
    with pytest.raises(ArpaError, match=rf"lm\.arpa: line \d+: .*{found}"):
        read_arpa(path)
    words = "".join(f"-1\tw{i}\n" for i in range(100))
    many = KENLM.replace("ngram 1=4", "ngram 1=104").replace("-0.5\ta", f"{words}-0.5\ta")
    assert read_arpa(write(tmp_path, compress(many.encode()))).counts == [104, 2]


def write(tmp_path, text: str | bytes):
    path = tmp_path / "lm.arpa"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def as_dictionary(arpa: Arpa) -> dict[tuple[str, ...], tuple[float, float]]:
    return {
        tuple(arpa.words[word] for word in row): (float(probability), float(backoff))
        for section in arpa.sections
        for row, probability, backoff in zip(
            section.words, section.log10_probabilities, section.log10_backoffs, strict=True
        )
    }


EXPECTED = {
    ("<unk>",): (-1.5, 0.0),
    ("<s>",): (0.0, -0.25),
    ("</s>",): (-1.0, 0.0),
    ("a",): (-0.5, -0.125),
    ("<s>", "a"): (-0.75, 0.0),
    ("a", "</s>"): (-0.25, 0.0),
}


@pytest.mark.parametrize("text", [KENLM, IRSTLM, COMMENTED, KENLM.replace("<unk>", "<UNK>"), "\ufeff" + KENLM])
def test_the_forms_of_all_toolkits_are_read(tmp_path, text):
    assert as_dictionary(read_arpa(write(tmp_path, text))) == EXPECTED


def test_sri_forms_are_read(tmp_path):
    wanted = {key: value for key, value in EXPECTED.items() if key != ("<unk>",)}
    wanted |= {("<s>",): (-99.0, -0.25), ("b",): (LOG10_ZERO, 0.0)}
    assert as_dictionary(read_arpa(write(tmp_path, SRILM))) == wanted


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_files_are_read(tmp_path, compress):
    data = compress(KENLM.encode())
    assert as_dictionary(read_arpa(write(tmp_path, data))) == EXPECTED
    for broken in (data[: len(data) // 2], data[:12] + bytes(20) + data[32:]):
        with pytest.raises(ArpaError, match="the compressed data are broken"):
            read_arpa(write(tmp_path, broken))


@pytest.mark.parametrize("path", sorted(DIRECTORY.glob("*.arpa.gz")), ids=lambda path: path.name)
def test_models_of_lmplz_are_read_completely(path):
    arpa, reference = read_arpa(path), NgramReference.read(path)
    ours = as_dictionary(arpa)
    assert ours.keys() == reference.probabilities.keys()
    for ngram, (probability, backoff) in ours.items():
        assert probability == pytest.approx(reference.probabilities[ngram], abs=1e-6)
        assert backoff == pytest.approx(reference.backoffs[ngram], abs=1e-6)
    assert arpa.order == reference.order


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\\data\\", "data", r"line 5: '\\\\1-grams:' comes before \\data\\"),
        ("\\data\\", "iARPA", "line 1: IRSTLM's intermediate format"),
        ("\\data\\", "mmap lm http://kheafield.com/code format", "line 1: KenLM's binary format"),
        ("\\data\\\nngram 1=4\nngram 2=2\n", "", r"line 2: '\\\\1-grams:' comes before \\data\\"),
        ("ngram 1=4\nngram 2=2\n", "", "line 2: there are no n-gram counts"),
        ("ngram 1=4", "ngram 1=-4", "line 2: expected `ngram ORDER=COUNT`, found 'ngram 1=-4'"),
        ("ngram 1=4", "ngram 1=3", r"line 9: expected '\\\\2-grams:', found '-0.5\\ta\\t-0.125'"),
        ("ngram 1=4", "ngram 1=5", "line 11: the header says 5 1-grams, found 4"),
        ("ngram 2=2", "ngram 2=900000000000", "line 15: the header says 900000000000 2-grams, found 2"),
        ("ngram 2=2", "ngram 2=2\nngram 3=0", r"line 16: expected '\\\\3-grams:', found '\\\\end\\\\'"),
        ("\\end\\", "", r"line 15: the file ends where '\\\\end\\\\' is expected"),
        ("\\2-grams:", "\\3-grams:", r"line 11: expected '\\\\2-grams:', found '\\\\3-grams:'"),
        ("-1\t</s>", "x\t</s>", "line 8: the log10 probability 'x' is not a number"),
        ("-1\t</s>", "nan\t</s>", "line 8: the log10 probability is 'nan'"),
        ("-1\t</s>", "0.1\t</s>", "line 8: the log10 probability '0.1' is above zero"),
        ("-0.125", "inf", "line 9: the log10 back-off is 'inf'"),
        ("-0.125", "", "nothing is wrong"),
        ("\ta\t-0.125", "", "line 9: expected a probability, 1 word and a back-off, found '-0.5'"),
        ("<s> a", "<s> a\t-0.5", "line 12: the back-off '-0.5' at the highest order"),
        ("<s> a", "<s> z", "line 12: the word 'z' is not among the 1-grams"),
        ("-1\t</s>", "-1\ta", "line 9: the 1-gram 'a' occurs twice"),
        ("-1\t</s>", "-1\t<UNK>", "line 8: the 1-gram '<unk>' occurs twice"),
        ("-1\t</s>", "-0_1\t</s>", "line 8: the log10 probability '-0_1' is not a number"),
    ],
)
def test_a_broken_file_is_rejected_with_its_line(tmp_path, old, new, message):
    assert old in KENLM
    path = write(tmp_path, KENLM.replace(old, new, 1))
    if message == "nothing is wrong":
        read_arpa(path)
        return
    with pytest.raises(ArpaError, match=message) as error:
        read_arpa(path)
    assert str(error.value).startswith(f"LM_INVALID: {path}: line ")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "line 0: the file ends"),
        (KENLM.encode().replace(b"\ta\t", b"\t\xff\t"), "line 9: is not UTF-8"),
        (b"\x1f\x8b" + bytes(50), r"lm\.arpa: "),
        (b"./model_config.yaml" + bytes(238) + b"ustar", "line 1: a tar archive, as NeMo's NGPU-LM"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer; `git lfs pull`"),
        (b"PK\x03\x04" + bytes(60), "a zip archive; unpack it"),
        (b"\x28\xb5\x2f\xfd" + bytes(60), "compressed by Zstandard"),
        (b"\\data\\" + b"x" * (1 << 20), "line 1: is longer than 1 MiB"),
    ],
)
def test_broken_bytes_are_rejected(tmp_path, data, message):
    with pytest.raises(ArpaError, match=message):
        read_arpa(write(tmp_path, data))


@pytest.mark.parametrize("name", ["1", "3", "sri"])
def test_what_is_written_reads_the_same(tmp_path, name):
    arpa = read_arpa(arpa_path(name))
    write_arpa(arpa, tmp_path / "again.arpa")
    ours, wanted = as_dictionary(read_arpa(tmp_path / "again.arpa")), as_dictionary(arpa)
    assert ours.keys() == wanted.keys()
    for ngram, values in ours.items():
        assert values == pytest.approx(wanted[ngram], abs=1e-6)


@pytest.mark.parametrize("word", ["", "a b", "a\n", "\t", "a\x0bb"])
def test_words_that_the_format_cannot_hold_are_rejected(tmp_path, word):
    section = ArpaSection(np.zeros((1, 1), np.int32), np.zeros(1), np.zeros(1), np.zeros(1, np.int64))
    with pytest.raises(PenstockError, match="cannot be written to an ARPA file"):
        write_arpa(Arpa([word], [section]), tmp_path / "x.arpa")
