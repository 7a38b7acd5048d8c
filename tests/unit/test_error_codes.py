"""The codes of errors: each is described, has one meaning, and stays what it was."""

import errno
import logging

import pytest

pytest.importorskip("pyspark")

from maxam.error_codes import CODES, code_of
from maxam.errors import ConfigurationError, PolicyError
from maxam.gateway.log import log_event
from maxam.records import REJECTION_RESULTS
from tests.docs.errors import classes, statuses

# One error in two programs: the client and the command, the pipeline and the system.
SHARED = {"load-failed", "log-full", "gateway-unreachable", "tls-failed", "not-found", "file-not-found"}
# Codes of releases. Scripts compare with them: add those of each release, and remove none.
RELEASED = """
    audit-broken backup-off backup-running bad bad-request beyond-maker body-not-kept bridge-required busy certificate-invalid certificate-refused
    certificate-request-invalid client-failed configuration-invalid connection-lost cross-site disk-full enrolment-off entry-invalid
    enrolment-refused expired failed file-forbidden file-not-found following forbidden gateway-unreachable in-use input-incomplete
    input-output internal invalid-destination invalid-glob invalid-parameter invalid-request invalid-selector invalid-token
    invalid-value job-failed journal-damaged journal-failed journal-incarnation journal-other journal-unreadable key-known key-revoked
    drill-unanswered forked front-diverged front-lost front-silent handover-refused link-down link-invalid link-lost link-refused journal-copied load-failed log-damaged log-full log-lost log-superseded log-trimmed maker member-live method-not-allowed missing-header
    no-certificate no-common-version no-rule no-token not-connected operations-invalid origins-invalid
    not-found not-in-force outcome-unknown personal-withheld policy-invalid position-unavailable principal-exists protocol-error publish-failed revisions-lost
    revoked schema-invalid stomp-error tls-failed token-exists too-large too-many too-many-streams too-often too-slow
    ticket-invalid token-expired token-invalid upgrade-required web-off topic-changed unauthenticated unauthorised unavailable unknown unknown-host usage used value-type value-unreadable withheld
"""


def test_each_class_has_a_code_of_its_own() -> None:
    """Two classes have one code only if they report the same error; each code is described."""
    codes = [one.code for one in classes() if "code" in vars(one) and one.code not in SHARED]
    assert sorted(codes) == sorted(set(codes))
    assert {one.code for one in classes()} <= set(CODES)


@pytest.mark.slow
def test_each_answer_has_a_described_code() -> None:
    """Each code of the admin API is described, or is the result of a rejected SEND."""
    assert set(statuses()) <= {*CODES, *REJECTION_RESULTS}


def test_a_released_code_stays() -> None:
    """No code of a release is gone, and each new one is added here, so that it stays too."""
    assert sorted(CODES) == sorted(RELEASED.split())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PolicyError("x"), "policy-invalid"),
        (ConfigurationError("x"), "configuration-invalid"),
        (FileNotFoundError(), "file-not-found"),
        (NotADirectoryError(), "file-not-found"),
        (PermissionError(), "file-forbidden"),
        (OSError(errno.EIO, "x"), "input-output"),
        (ValueError(), "internal"),
    ],
)
def test_any_error_has_a_code(error: Exception, code: str) -> None:
    """An error that was raised on purpose has its own code, one of the system that of its kind, and any other is a defect."""
    assert code_of(error) == code


def test_a_logged_error_has_its_code(caplog: pytest.LogCaptureFixture) -> None:
    """An event with an exception has its code, one with a text its own name, and one without an error none."""
    with caplog.at_level(logging.INFO, "maxam"):
        log_event(logging.ERROR, "some-failed", error=PolicyError("x"))
        log_event(logging.ERROR, "some-failed", error="x")
        log_event(logging.INFO, "some-done")
    assert [record.getMessage() for record in caplog.records] == [
        "some-failed error=x error_code=policy-invalid",
        "some-failed error=x error_code=some-failed",
        "some-done",
    ]
