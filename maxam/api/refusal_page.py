"""The page that a browser shows in place of the console when it is refused: words instead of JSON.

The page is markup without script. Everything that came from a client or a policy is escaped. The page's own policy for content allows
nothing but its own style, by its hash: the console's is for those who have the right.
"""

from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from maxam.api.answers import ApiError
from maxam.api.browsers import ENTRANCES
from maxam.api.routes.console import CONSOLE_PATH
from maxam.terminal.escaping import shown

_STYLE: Final = (
    ":root{color-scheme:light dark}"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:4rem auto;padding:0 1rem;overflow-wrap:anywhere}"
    "h1{font-size:1.4rem;line-height:1.2}dt{margin-top:.6rem;opacity:.75}dd{margin:0}code{font-size:.9em}"
)
_CONTENT_SECURITY_POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        f"style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'",
        "img-src 'self'",  # the icon that browsers request
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
_ANOTHER: Final = (
    "Or the browser showed another certificate than you meant. It keeps to its choice: close all of its windows, open this address"
    " again, and choose when it asks."
)


def wants_page(request: Request) -> bool:
    """Return True if a person reads the answer to this: it is of the console, and HTML is asked for."""
    path: str = request.scope["path"]
    return (path in ENTRANCES or path.startswith(CONSOLE_PATH)) and _accepts_html(request.headers.get("accept", ""))


def _accepts_html(accept: str) -> bool:
    """Return True if a header lists HTML itself: programs that take anything take JSON.

    Spec: RFC 9110 "12.5.1. Accept"
    """
    for part in accept.lower().split(","):
        media_type, *parameters = [one.strip() for one in part.split(";")]
        if media_type == "text/html":
            weights = [one.removeprefix("q=") for one in parameters if one.startswith("q=")]
            return not weights or weights[0].strip("0.") != ""
    return False


def refusal_page(error: ApiError, right: str, principal: str | None, fingerprint: str | None) -> Response:
    """Return an error as a page.

    Args:
        error: Why the console is not served.
        right: That it needs.
        principal: Of the certificate. None if the policy has none for it.
        fingerprint: Of the certificate. None if the browser showed none.
    """
    code, detail = error.body["error"], str(error)
    facts = (
        [] if fingerprint is None else [("Principal", principal or "none: the policy does not know this certificate")]
    )
    heading, advice = "The gateway refuses this", []
    if code == "forbidden":
        heading = "Your certificate has no right to this gateway"
        facts += [("Missing", f"the admin right {right}")]
        whose = "that principal" if principal else "a principal with the fingerprint below"
        advice = [
            f'Ask the keeper of the gateway\'s policy to give {whose} a capability with admin = ["{right}"]; it counts as soon as the'
            " policy is loaded. Then load this page again.",
            _ANOTHER,
        ]
    elif code == "certificate-refused":
        heading = "Your certificate is no longer valid"
        advice = ["Have a new certificate issued, and import it into the browser.", _ANOTHER]
    elif code == "unauthenticated":
        heading = "The browser showed the gateway no certificate"
        advice = [
            "Import a certificate with its key into the browser, as described in docs/operate/console.md under “Opening it”. If it is there, close all"
            " windows of the browser, open this address again, and choose it when the browser asks."
        ]
    if fingerprint is not None:
        facts.append(("Fingerprint of the certificate (SHA-256)", fingerprint))
    listed = "".join([f"<dt>{escape(name)}</dt><dd><code>{escape(shown(text))}</code></dd>" for name, text in facts])
    paragraphs = "".join([f"<p>{escape(shown(text))}</p>" for text in [f"{detail[:1].upper()}{detail[1:]}.", *advice]])
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>maxam: {escape(heading)}</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>{escape(heading)}</h1>{paragraphs}<dl>{listed}</dl></main></body></html>\n"
    )
    return Response(
        page,
        error.status,
        {
            "content-type": "text/html; charset=utf-8",
            "content-security-policy": _CONTENT_SECURITY_POLICY,
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
            "vary": "accept",
        },
    )
