"""The stable codes of errors: what each means and what to do. A code is never renamed, and never used for another error."""

from typing import Final, NamedTuple

from maxam.errors import MaxamError

USAGE: Final = "usage"
FILE_NOT_FOUND: Final = "file-not-found"
FILE_FORBIDDEN: Final = "file-forbidden"
INPUT_OUTPUT: Final = "input-output"
INTERNAL: Final = "internal"


class Entry(NamedTuple):
    """One code.

    Attributes:
        meaning: The event that the error reports.
        action: The remedy.
    """

    meaning: str
    action: str


CODES: Final[dict[str, Entry]] = {
    # Commands, the client, and log events.
    "failed": Entry("The command failed.", "Read the text of the error."),
    "usage": Entry("An option or argument is missing or wrong. Nothing was done.", "Correct the command line."),
    "file-not-found": Entry("A file or folder does not exist.", "Correct the path."),
    "file-forbidden": Entry("The user of the process may not open a file.", "Change the owner or mode of the file."),
    "input-output": Entry("A file, a disk or standard output cannot be used.", "Check the disk that the text names."),
    "input-incomplete": Entry("Part of the input could not be read.", "See the parts listed on standard error."),
    "internal": Entry("The program has a defect.", "Report it with the traceback from the log."),
    "configuration-invalid": Entry("A configuration file cannot be used.", "Correct the file at the given place."),
    "policy-invalid": Entry("A policy cannot be used.", "Correct it, then run `maxam-admin policy check`."),
    "schema-invalid": Entry(
        "A schema folder or a text in it cannot be used.", "Correct it, then run `maxam-admin schemas check`."
    ),
    "certificate-invalid": Entry(
        "A certificate, key or CA file is missing or is not valid PEM.", "Correct the path or the file."
    ),
    "certificate-request-invalid": Entry("A certificate is not issued for this request.", "Correct the request."),
    "audit-broken": Entry("The chain of an audit log is broken.", "Compare it with a copy; see security.md."),
    "journal-failed": Entry("The journal cannot be read or written.", "Check its path and its disk."),
    "journal-damaged": Entry(
        "Stored bytes differ from those that were written.", "Run `maxam-admin journal verify` and `journal repair`."
    ),
    "journal-other": Entry(
        "The journal is not the one that was read before, or it was restored or repaired since.",
        "Name the right journal, or begin again with an empty target.",
    ),
    "journal-incarnation": Entry(
        "The journal holds all that was read before, but it was restored or repaired since.",
        "Confirm with the option in the text.",
    ),
    "revisions-lost": Entry(
        "Revisions are gone, or cannot be read.", "Begin again with the oldest revision that is left."
    ),
    "entry-invalid": Entry(
        "An entry of a feed is damaged, or another release wrote it.",
        "Install the same release on both sides. If it is the same, see the log of the gateway that sent it.",
    ),
    "log-lost": Entry("The log of the cluster gives no answer.", "Check the nodes of etcd and the lines to them."),
    "log-superseded": Entry("Another member of the cluster leads.", "Nothing: the gateway starts again and follows."),
    "log-full": Entry(
        "The log of the cluster has no room.", "Start the members that are away, or give etcd a larger quota."
    ),
    "log-trimmed": Entry("The log has forgotten entries that a member needs.", "Nothing: the member copies a journal."),
    "log-damaged": Entry(
        "An entry or the head of the log is damaged, or another release wrote it.",
        "Install the same release on all members. If it is the same, check the nodes of etcd.",
    ),
    "link-invalid": Entry(
        "A gateway sent something over a link that is no message of this release.",
        "Install the same release on both sides, and check that the address is a link of maxam.",
    ),
    "operations-invalid": Entry(
        "A front sent operations that are garbled or do not follow. The gateway starts another front.",
        "Run one release only. If it recurs, report it with the log.",
    ),
    "origins-invalid": Entry(
        "An entry has garbled outcomes of the operations of fronts.",
        "Run one release only. If it recurs, report it with the log.",
    ),
    "front-lost": Entry(
        "The link between a gateway and one of its fronts has ended.",
        "The gateway starts another front by itself. See the log for the reason.",
    ),
    "front-silent": Entry(
        "The front that has the session did not answer within a second, or has just ended.",
        "Try again. If it recurs, see the log of the front and the load of the machine.",
    ),
    "front-diverged": Entry(
        "The gateway sends a front something that does not continue what the front has.",
        "The gateway starts another front by itself. If it recurs, report it with the log.",
    ),
    "link-lost": Entry(
        "A link to another gateway cannot be made, or has ended.", "Check its address, its certificate and the line."
    ),
    "link-refused": Entry(
        "Another gateway refuses to serve a feed from the position of this journal.",
        "See the text, which has the reason.",
    ),
    "journal-copied": Entry(
        "The journal of another gateway was copied, and replaces the own one at the next start.",
        "Start the gateway again. The service manager does it by itself.",
    ),
    "disk-full": Entry("The disk has no room. Nothing was stored.", "Free space on the disk."),
    "client-failed": Entry("The client cannot do what it was asked to.", "Read the text of the error."),
    "gateway-unreachable": Entry("No gateway answers at the address.", "Check the address, and that the gateway runs."),
    "tls-failed": Entry(
        "One side does not accept the certificate or the TLS version of the other.",
        "Check the certificate, the key and the CA.",
    ),
    "stomp-error": Entry("The gateway ended the connection with an ERROR frame.", "Find its `message` in protocol.md."),
    "no-common-version": Entry("Client and gateway have no STOMP version in common.", "Use version 1.1 or 1.2."),
    "connection-lost": Entry("The connection was closed, reset or silent for too long.", "Connect again."),
    "outcome-unknown": Entry(
        "The connection was lost before the RECEIPT of a SEND.", "Read the topic before you send again."
    ),
    "position-unavailable": Entry(
        "The gateway cannot resume a subscription from the position in `since`.",
        "Drop the values that were kept with it, and subscribe with `eager`.",
    ),
    "value-type": Entry(
        "A value does not fit the type that the program asked for.", "Correct the type, or read the value as JSON."
    ),
    "protocol-error": Entry("The other side broke the STOMP protocol.", "Correct the other program."),
    "value-unreadable": Entry("A body does not belong to its schema.", "Check which schema the topic had then."),
    "job-failed": Entry("A job of the pipeline cannot do what it was asked to.", "Read the text of the error."),
    "publish-failed": Entry("Not all rows were published.", "Publish again with the same source: this is safe."),
    "load-failed": Entry("A load test cannot go on, or its report would not be true.", "Read the text of the error."),
    "enrolment-refused": Entry(
        "The enrolment listener refuses to issue a certificate.", "Read the reason in the text."
    ),
    # The admin API.
    "bad": Entry("The request is not valid HTTP for this API.", "Correct the client."),
    "invalid-parameter": Entry(
        "A parameter is unknown, or its value is not valid.", "See the description of the route."
    ),
    "invalid-glob": Entry("A glob is malformed, too complex, or can match no destination.", "Correct the glob."),
    "invalid-selector": Entry(
        "A selector is malformed, too long, or does not fit the schemas.", "Correct it at the position in the text."
    ),
    "invalid-destination": Entry("A destination is malformed.", "Correct the destination."),
    "invalid-request": Entry("A header or the body of the request is not valid.", "Correct the request."),
    "invalid-value": Entry("A value does not fit its schema.", "Correct the field that the text names."),
    "invalid-token": Entry("The token would grant what the policy does not have.", "Correct the request for a token."),
    "bad-request": Entry("The body is not a certificate request in PKCS 10.", "Correct the request."),
    "method-not-allowed": Entry("The path does not have this method.", "Use a method of the header `allow`."),
    "not-found": Entry("The thing or the path does not exist.", "List what there is."),
    "no-rule": Entry("No rule of the registry covers the destination.", "Add a rule to registry.toml."),
    "unauthenticated": Entry(
        "No client certificate was presented, or a CONNECT to the web listener has no ticket.",
        "Give a certificate, or a ticket.",
    ),
    "ticket-invalid": Entry(
        "A ticket is unknown, used or expired, or it is for another client-id or page.", "Connect with a new ticket."
    ),
    "token-invalid": Entry(
        "A JSON Web Token does not count here: issuer, audience, key, principal or globs.",
        "See the text of the ERROR, and get another token.",
    ),
    "token-expired": Entry("The token of a connection has expired.", "Connect with a new token."),
    "upgrade-required": Entry("The path is for WebSockets only.", "Ask for an upgrade, see protocol.md."),
    "web-off": Entry("The gateway serves no client without a certificate.", "Set `[web]` in maxam.toml."),
    "certificate-refused": Entry("The certificate was revoked or has expired.", "Renew the certificate."),
    "forbidden": Entry("The principal lacks the admin right.", "Grant the right in policy.toml."),
    "bridge-required": Entry(
        "The SEND has headers that only bridges may send: `origin-gateway`, `origin-publisher`, `origin-timestamp` or `via`.",
        "Leave them out, or give the principal a capability with `bridge = true`.",
    ),
    "drill-unanswered": Entry("A bridge did not report the result of a drill.", "See `maxam-admin bridges show`."),
    "link-down": Entry("The link of a bridge is down.", "See `maxam-admin bridges show`."),
    "unauthorised": Entry("The principal may not send to this destination.", "Grant the right in policy.toml."),
    "withheld": Entry("The principal may not receive this destination.", "Grant the right in policy.toml."),
    "personal-withheld": Entry(
        "A condition reads a field that its schema marks as personal.", "Request personal data: `pii=true`."
    ),
    "cross-site": Entry(
        "A page of another site made the browser send the request.",
        "Use the console's own pages, or list the origin in `[web] origins`.",
    ),
    "missing-header": Entry("A request that writes lacks the header `maxam-admin`.", "Send `maxam-admin: 1`."),
    "unknown-host": Entry("The gateway does not have the name in `Host`.", "List the name in `[admin] hosts`."),
    "too-large": Entry("The body of the request is too long, or has no length.", "Send less at once."),
    "too-many-streams": Entry("Too many live views are open.", "Close some of them."),
    "too-slow": Entry(
        "The request was not done in time. A write may still take effect.", "Read the state, then ask again."
    ),
    "following": Entry(
        "The gateway follows another one and takes no changes.", "Make the change at the gateway that the text names."
    ),
    "forked": Entry(
        "The journal of a member has changes that its cluster does not have.", "Set it aside; the next start copies."
    ),
    "handover-refused": Entry(
        "The gateway cannot hand over the lead of its cluster.", "Run `maxam-admin cluster status`."
    ),
    "member-live": Entry("The member of the cluster announces itself.", "Stop it before you remove it."),
    "busy": Entry("The gateway cannot do this now.", "Ask again in a moment."),
    "in-use": Entry("A subscription or session is in use by a connection.", "Disconnect the client first."),
    "not-connected": Entry("The session has no live connection.", "Nothing: there is no connection to close."),
    "body-not-kept": Entry("The body of the rejected SEND was not kept.", "Have the publisher send it again."),
    "topic-changed": Entry("The topic has changed since the SEND was rejected.", "Force it, or leave the newer value."),
    "journal-unreadable": Entry("The gateway cannot read its own journal.", "Run `maxam-admin journal verify`."),
    "backup-off": Entry("The gateway makes no backups.", "Set `[backup] folder`."),
    "backup-running": Entry("A backup is running already.", "Wait for its end."),
    # Enrolment.
    "enrolment-off": Entry("The gateway does not enrol clients.", "Set `[enrolment]` in maxam.toml."),
    "no-token": Entry("The request has no token.", "Give the token as the password of HTTP Basic authentication."),
    "no-certificate": Entry("A renewal needs the certificate that is to be renewed.", "Present it, or use a token."),
    "unknown": Entry("The token or the certificate is unknown.", "Ask an operator for a new token."),
    "used": Entry("The token was used with another key.", "Ask an operator for a new token."),
    "expired": Entry("The token has expired.", "Ask an operator for a new token."),
    "revoked": Entry("The certificate was revoked.", "Ask an operator for a new token."),
    "maker": Entry("The maker of the token may no longer enrol clients.", "Ask an operator for a new token."),
    "beyond-maker": Entry("The token would grant rights that its maker lacks.", "Ask for fewer rights."),
    "principal-exists": Entry("A principal of this name exists already.", "Choose another name."),
    "token-exists": Entry("A token for this principal waits to be used.", "Use it, or revoke it."),
    "too-many": Entry("Too many tokens wait to be used.", "Revoke some of them."),
    "too-often": Entry("Too many certificates of this client are valid.", "Ask again when some have been retired."),
    "key-revoked": Entry("A certificate of this key was revoked.", "Make another key."),
    "key-known": Entry("The key belongs to another principal.", "Make another key."),
    "not-in-force": Entry("The certificate was made, but is not in force.", "Ask again later with the same key."),
    "unavailable": Entry("The gateway cannot store the certificate now.", "See its log."),
}


def code_of(error: BaseException) -> str:
    """Return the code of an error: its own if it was raised on purpose, else one for its kind."""
    match error:
        case MaxamError():
            return error.code
        case FileNotFoundError() | NotADirectoryError():
            return FILE_NOT_FOUND
        case PermissionError():
            return FILE_FORBIDDEN
        case OSError():
            return INPUT_OUTPUT
        case _:
            return INTERNAL
