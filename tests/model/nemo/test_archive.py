"""A .nemo is an untrusted tar: every unsafe or broken one is rejected, and nothing is written."""

import gzip
import io
import tarfile

import pytest

from penstock.model.nemo import archive as nemo_archive
from tests.helpers.golden import golden_case
from tests.helpers.nemo_files import CONFIG, WEIGHTS, assert_rejected, nemo_members, tokenizer_member, write_nemo


def header(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, link
    return info


@pytest.mark.parametrize(
    ("info", "match"),
    [
        (header("evil", tarfile.SYMTYPE, link="/etc/passwd"), "'evil' is a link, a device"),
        (header("evil", tarfile.LNKTYPE, link=WEIGHTS), "'evil' is a link, a device"),
        (header("evil", tarfile.CHRTYPE), "'evil' is a link, a device"),
        (header("evil", tarfile.FIFOTYPE), "'evil' is a link, a device"),
        (header("/tmp/evil"), "'/tmp/evil' points outside"),
        (header("../evil"), "'../evil' points outside"),
        (header("a/../../evil"), "points outside"),
        (header("a\\..\\evil"), "points outside"),
        (header("C:evil"), "points outside"),
        (header(f"./{WEIGHTS}"), f"{WEIGHTS} occurs twice"),
        (header(f"x/.//../{WEIGHTS}"), "points outside"),
        (header("huge", size=1 << 40), "'huge' has 1099511627776 bytes; accepted: at most"),
    ],
)
def test_unsafe_members(info, match, tmp_path):
    assert_rejected(write_nemo(tmp_path / "a.nemo", nemo_members(), extra=(info,)), match)


def test_unsafe_members_in_a_gzipped_archive(tmp_path):
    plain = write_nemo(tmp_path / "plain", nemo_members(), extra=(header("../evil"),))
    (tmp_path / "a.nemo").write_bytes(gzip.compress(plain.read_bytes()))
    assert_rejected(tmp_path / "a.nemo", "'../evil' points outside")


@pytest.mark.parametrize("missing", [CONFIG, WEIGHTS, tokenizer_member()])
def test_missing_members_are_named(missing, tmp_path):
    members = nemo_members()
    del members[missing]
    assert_rejected(write_nemo(tmp_path / "a.nemo", members), f"member .*{missing[-15:]} is missing; found: ")


@pytest.mark.parametrize("name", ["rnnt_hybrid", "rnnt_bytes"])  # gzipped and plain
@pytest.mark.parametrize("part", [0.0, 0.001, 0.1, 0.5, 0.9])
def test_truncated_files(name, part, tmp_path):
    data = golden_case(name).nemo_path.read_bytes()
    (tmp_path / "a.nemo").write_bytes(data[: int(len(data) * part)])
    assert_rejected(tmp_path / "a.nemo", "truncated|missing")


@pytest.mark.parametrize("data", [b"PK\x03\x04 a zip", b"\x1f\x8b no gzip at all", b"\0" * 10240])
def test_files_of_another_kind(data, tmp_path):
    (tmp_path / "a.nemo").write_bytes(data)
    assert_rejected(tmp_path / "a.nemo", "not a tar archive|broken or truncated gzip|is missing; found: nothing")


def test_corrupt_gzip_data(tmp_path):
    data = bytearray(golden_case("rnnt_hybrid").nemo_path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    (tmp_path / "a.nemo").write_bytes(data)
    assert_rejected(tmp_path / "a.nemo", "broken or truncated gzip|contains more than tensors|is not finite|truncated")


@pytest.mark.parametrize("change", [lambda header: b"x" + header[1:], lambda header: bytes(512)])
def test_a_broken_header_is_not_the_end(tmp_path, change):
    path = write_nemo(tmp_path / "a.nemo", nemo_members() | {"last": b"1"})
    data = path.read_bytes()
    place = data.rindex(b"last\0")
    path.write_bytes(data[:place] + change(data[place : place + 512]) + data[place + 512 :])
    assert_rejected(path, f"the header of a member is broken, at byte {place}")


def test_a_gzip_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(nemo_archive, "MAX_ARCHIVE_BYTES", 5 << 20)
    (tmp_path / "a.nemo").write_bytes(gzip.compress(bytes(20 << 20)))
    assert_rejected(tmp_path / "a.nemo", "decompresses to more than 5242880 bytes")


def test_too_many_members(tmp_path):
    extra = tuple(header(f"member{i}") for i in range(nemo_archive.MAX_MEMBERS))
    assert_rejected(write_nemo(tmp_path / "a.nemo", nemo_members(), extra=extra), "more than 1000 members")


def test_a_header_that_claims_huge_memory(tmp_path):
    members = io.BytesIO()
    with tarfile.open(fileobj=members, mode="w") as tar:
        tar.addfile(header("path", tarfile.XHDTYPE, size=1 << 30))
    (tmp_path / "a.nemo").write_bytes(members.getvalue() + bytes(4096))
    assert_rejected(tmp_path / "a.nemo", "a header claims 1073741824 bytes")


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_headers_without_end(tmp_path, kind):
    """tarfile reads a header of a header by recursion."""
    one = header("path", kind, size=1).tobuf(tarfile.USTAR_FORMAT) + b"\0".ljust(512, b"\0")
    (tmp_path / "a.nemo").write_bytes(one * 3000 + bytes(1024))
    assert_rejected(tmp_path / "a.nemo", "not a tar archive")


def test_an_oversized_configuration(tmp_path):
    assert_rejected(
        write_nemo(tmp_path / "a.nemo", nemo_members() | {CONFIG: b"#" * (17 << 20)}),
        f"member {CONFIG} has 17825792 bytes; accepted: at most 16777216",
    )
