"""Where the rooms are put together: the gateway with the admin listener beside it."""

from pathlib import Path

from maxam.api.service import serve_admin
from maxam.config import Settings
from maxam.enrolment.enrolment import check_enrolment
from maxam.gateway.loaded_config import LoadedConfig
from maxam.gateway.main import run as run_gateway


def _check_links(settings: Settings, loaded: LoadedConfig) -> None:
    """Raise ConfigurationError for a file of `[link]` that cannot be used."""
    if settings.link is not None:
        from maxam.gateway.link_credentials import LinkCredentials  # noqa: PLC0415  # loaded only where it is wanted

        LinkCredentials(settings.tls, settings.link, lambda: loaded)


def _run_front(settings: Settings, check: bool) -> None:
    """Serve the clients of a gateway on another machine, or check the files of that."""
    from maxam.front.remote import run_front  # noqa: PLC0415  # loaded only where it is wanted

    run_front(settings, check)


def run(path: Path, check: bool, online: bool) -> None:
    """Run a gateway with its admin listener, or check its files."""
    run_gateway(path, check, online, [serve_admin], [check_enrolment, _check_links], _run_front)
