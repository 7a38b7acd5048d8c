"""The one place that loads the engine of a cluster's log, so that a gateway without `[cluster]` needs nothing of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from maxam.errors import ConfigurationError

if TYPE_CHECKING:
    from maxam.cluster.etcd import EtcdLog


def open_log(name: str, endpoints: Sequence[str], ca: Path, certificate: Path, key: Path) -> "EtcdLog":
    """Return the log of a cluster; nothing is connected yet. The arguments are those of `EtcdLog`.

    Raises:
        ConfigurationError: An endpoint is not an address, or a Python package is not installed.
        CertificateFileError: A file is missing, unreadable or not PEM of its kind.
    """
    try:
        from maxam.cluster.etcd import EtcdLog  # noqa: PLC0415  # only a cluster needs its packages
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"[cluster] needs the Python package {error.name}, which is not installed:"
            " run pip install 'maxam[gateway,cluster]', or remove [cluster]"
        ) from error
    return EtcdLog(name, endpoints, ca, certificate, key)
