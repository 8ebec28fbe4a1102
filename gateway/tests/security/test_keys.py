import hashlib
import os

import pytest

from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.security.access import Access, ClientSecrets, Origins
from penstock_gateway.security.keys import ANONYMOUS, ApiKey, KeyRing


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def ring(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"# name sha256 streams\nshop {digest('sk-shop')} 4  # a comment\n\nlab {digest('sk-lab')} 100\n")
    return KeyRing.read(path)


def access_of(ring, now_s=lambda: 1000.0, signing_key=b"k" * 32):
    return Access(ring, ClientSecrets(signing_key, ring, now_s), Origins())


def rejected(call, *arguments):
    with pytest.raises(GatewayError) as caught:
        call(*arguments)
    return caught.value.code


def test_each_key_has_its_name_and_its_streams(ring):
    assert ring.authenticate("sk-shop") == ApiKey("shop", 4)
    assert ring.authenticate("sk-lab") == ApiKey("lab", 100)


@pytest.mark.parametrize("text", [None, "", "sk-sho", digest("sk-shop"), "sk-shop ", "ключ"])
def test_other_texts_are_rejected(ring, text):
    assert rejected(ring.authenticate, text) is GatewayCode.INVALID_API_KEY


def test_without_a_file_no_key_is_needed():
    assert KeyRing().authenticate(None) == ANONYMOUS == KeyRing().authenticate("anything")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("shop abc 4", "line 1"),
        (f"shop {digest('a')}", "line 1"),
        ("\n".join(f"shop {digest(text)} 1" for text in "abc"), "line 3: the name shop has more than 2 keys"),
        (f"shop {digest('a')} 1 streams=3", "line 1: streams=3"),
        (f"shop {digest('a')} 1 requests_per_minute=0", "line 1: requests_per_minute=0"),
        (f"shop {digest('a')} 1requests_per_minute=1", "line 1"),
        (f"shop {digest('a')} 1 expires=tomorrow", "line 1: expires=tomorrow is no date"),
        ("# nothing", "no key"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, text, named):
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"{path}.*{named}"):
        KeyRing.read(path)


def test_a_client_secret_stands_for_its_key_until_it_expires(ring):
    now_s = [1000.0]
    access = access_of(ring, lambda: now_s[0])
    secret, expires_s = access.secrets.create(ApiKey("shop", 4), 60)
    assert secret.startswith("ek_")
    assert expires_s == 1060
    assert access.authenticate_header(f"Bearer {secret}") == ApiKey("shop", 4)
    now_s[0] = 1061
    assert rejected(access.read, secret) is GatewayCode.INVALID_API_KEY


def test_a_changed_secret_is_rejected(ring):
    access = access_of(ring)
    secret, _ = access.secrets.create(ApiKey("shop", 4))
    for position in range(3, len(secret)):
        other = "A" if secret[position] != "A" else "B"
        changed = secret[:position] + other + secret[position + 1 :]
        try:
            assert access.read(changed).key == ApiKey("shop", 4), "base64's last bits may say the same"
            assert position == len(secret) - 1
        except GatewayError as error:
            assert error.code is GatewayCode.INVALID_API_KEY
    for text in ("ek_", "ek_é", "ek_" + "A" * 21, secret + "A", secret[:-4]):
        assert rejected(access.read, text) is GatewayCode.INVALID_API_KEY
    elsewhere = access_of(ring, signing_key=b"x" * 32)
    assert rejected(elsewhere.read, secret) is GatewayCode.INVALID_API_KEY


def test_a_client_secret_has_the_settings_of_its_session_in_any_process(ring):
    session = {"openai": {"audio": {"input": {"transcription": {"keywords": ["Łódź"] * 100}}}}}
    secret, _ = access_of(ring).secrets.create(ApiKey("shop", 4), session=session)
    assert access_of(ring).read_header(f"Bearer {secret}") == (ApiKey("shop", 4), session)
    assert access_of(ring).read("sk-shop") == (ApiKey("shop", 4), {})


def test_a_session_that_no_handshake_could_carry_is_rejected(ring):
    random = [hashlib.sha256(bytes([number])).hexdigest() for number in range(200)]
    assert rejected(access_of(ring).secrets.create, ANONYMOUS, 60, {"openai": random}) is GatewayCode.TOO_LARGE


@pytest.mark.parametrize("seconds", [59, 7201, 0, -1])
def test_the_lifetime_of_a_secret_is_limited(ring, seconds):
    assert rejected(access_of(ring).secrets.create, ANONYMOUS, seconds) is GatewayCode.FIELD_INVALID


def test_a_client_secret_makes_no_others_but_a_key_with_its_letters_does():
    ring = KeyRing([(ApiKey("week", 4), hashlib.sha256(b"sk-week_12").digest())])
    access = access_of(ring)
    assert access.authenticate_key_header("Bearer sk-week_12").name == "week"
    secret, _ = access.secrets.create(ApiKey("week", 4))
    for header in (f"Bearer {secret}", f"bearer  {secret}", "Bearer ek_", None):
        assert rejected(access.authenticate_key_header, header) is GatewayCode.INVALID_API_KEY


@pytest.mark.parametrize("header", [None, "", "sk-shop", "Basic sk-shop", "Bearer", "Bearer x"])
def test_only_a_bearer_header_counts(ring, header):
    assert rejected(access_of(ring).authenticate_header, header) is GatewayCode.INVALID_API_KEY


def test_the_scheme_has_no_case(ring):
    assert access_of(ring).authenticate_header("bearer sk-shop").name == "shop"


@pytest.mark.parametrize(
    ("origin", "host", "is_allowed"),
    [
        (None, "asr.example.com", True),
        ("https://shop.example.com", "asr.example.com", True),
        ("https://SHOP.example.com", "asr.example.com", True),
        ("http://shop.example.com", "asr.example.com", False),
        ("https://asr.example.com:8080", "asr.example.com:8080", True),
        ("https://asr.example.com.evil.com", "asr.example.com", False),
        ("null", "asr.example.com", False),
        ("null", None, False),
        ("https://[", "asr.example.com", False),
    ],
)
def test_origins(origin, host, is_allowed):
    origins = Origins(["https://shop.example.com/"])
    if is_allowed:
        origins.check(origin, host)
    else:
        assert rejected(origins.check, origin, host) is GatewayCode.ORIGIN_REJECTED


def test_a_star_allows_every_page():
    Origins(["*"]).check("https://anything.example", "asr.example.com")


def test_a_key_has_quotas_and_a_last_day(tmp_path):
    now_s = [1_798_675_200.0]  # 2026-12-31
    path = tmp_path / "keys"
    path.write_text(
        f"shop {digest('old')} 4 expires=2026-12-31\n"
        f"shop {digest('new')} 4 requests_per_minute=60 audio_minutes_per_day=1000\n"
    )
    ring = KeyRing.read(path, lambda: now_s[0])
    assert ring.authenticate("old").name == ring.authenticate("new").name == "shop"
    assert ring.authenticate("new") == ApiKey("shop", 4, 60, 1000)
    now_s[0] += 86_400
    assert rejected(ring.authenticate, "old") is GatewayCode.INVALID_API_KEY
    assert ring.named("shop") == ring.authenticate("new")


def test_a_changed_file_is_read_again_and_a_wrong_one_is_not(tmp_path, caplog):
    path = tmp_path / "keys"
    path.write_text(f"shop {digest('a')} 4")
    ring, problems = KeyRing.read(path), []

    def refresh():
        for _ in range(3):
            ring.file.refresh()

    ring.file.on_rejection = lambda: problems.append(ring.file.problem)
    path.write_text(f"\ufeffshop {digest('a')} 4\nlab {digest('b')} 40", encoding="utf-8")
    refresh()
    assert ring.authenticate("b").name == "lab" and ring.authenticate("a").name == "shop"
    path.write_text("shop\n")
    refresh()
    path.write_text("other\n")
    refresh()
    assert caplog.text.count("line 1") == 2
    path.unlink()
    refresh()
    os.mkfifo(path)
    refresh()
    assert ring.authenticate("b").name == "lab"
    kept = [text for text in caplog.messages if "keys: the last right content stays in use" in text]
    assert len(kept) == len(problems) == 4
    assert f"it is a FIFO; accepted: a regular file: '{path}'" in kept[-1]
    path.unlink()
    path.write_text(f"lab {digest('b')} 4000")
    refresh()
    assert ring.authenticate("b").max_streams == 4000 and not ring.file.problem
    assert rejected(ring.authenticate, "a") is GatewayCode.INVALID_API_KEY


def test_a_file_that_is_being_written_is_not_taken(tmp_path):
    path = tmp_path / "keys"
    lines = [f"{name} {digest(name)} 4\n" for name in ("a", "b", "c")]
    path.write_text("".join(lines))
    ring = KeyRing.read(path)
    for written in range(1, 4):
        path.write_text("".join(lines[:written]))
        ring.file.refresh()
        assert [ring.authenticate(name).name for name in "abc"] == ["a", "b", "c"]
    path.write_text(lines[0])
    ring.file.refresh()
    ring.file.refresh()
    assert rejected(ring.authenticate, "b") is GatewayCode.INVALID_API_KEY


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [
        (None, True), ("localhost", True), ("LOCALHOST:8080", True), ("127.0.0.1:8080", True), ("[::1]:8080", True),
        ("asr.localhost", True), ("evil.example:8080", False), ("localhost.evil.example", False), ("", False),
        ("127.0.0.1.evil.example", False), ("10.0.0.1", False), ("evil-localhost", False), ("a@localhost", False),
    ],
)  # fmt: skip
def test_without_keys_only_loopback_names_are_served(ring, host, is_allowed):
    access_of(ring).check_page(None, host)  # a gateway with keys is served under any name
    access = access_of(KeyRing())
    if is_allowed:
        access.check_page(None, host)
    else:
        assert rejected(access.check_page, None, host) is GatewayCode.ORIGIN_REJECTED
        assert rejected(access.check_page, f"http://{host}", host) is GatewayCode.ORIGIN_REJECTED
