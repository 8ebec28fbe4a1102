import resource

import pytest

from penstock.errors import SettingError
from penstock.serving.launch import raise_open_file_limit


@pytest.fixture
def limits(monkeypatch) -> dict[str, tuple[int, int]]:
    """The limit on open files, as (soft, hard), of a process that is not this one."""
    found = {"files": (1024, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda which: found["files"])
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: found.update(files=pair))
    return found


def test_a_hard_limit_below_the_streams_is_rejected(limits):
    limits["files"] = (64, 64)
    with pytest.raises(SettingError, match=r"the limit on open files is 64 \(`ulimit -n`\); accepted: 133 or more"):
        raise_open_file_limit(5)


def test_the_soft_limit_is_raised_as_far_as_needed(limits):
    raise_open_file_limit(64)
    assert limits["files"] == (1024, 4096)
    raise_open_file_limit(3000)
    assert limits["files"] == (3128, 4096)
    limits["files"] = (256, resource.RLIM_INFINITY)
    raise_open_file_limit(200)
    assert limits["files"] == (328, resource.RLIM_INFINITY)
