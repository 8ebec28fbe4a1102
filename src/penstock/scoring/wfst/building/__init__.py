"""Builds decoding graphs offline, on a CPU, with kaldifst (extra `graph`)."""

from penstock.errors import PackageError
from penstock.extras import install_command

try:
    import kaldifst  # noqa: F401
except ImportError as error:
    raise PackageError(f"building decoding graphs needs kaldifst: {install_command('graph')}") from error
