"""URIs that pyarrow can open (s3, gs, abfs, hdfs, file), and how they are named without what is secret in them.

The user part of a URI may be a key pair and its query may hold tokens, so neither is ever shown: not in an error, not
in a log, not in a folder's name.
"""

import re
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
from pyarrow import fs

from rayprivacy.core.errors import RayPrivacyError
from rayprivacy.core.private import digest_json

_SECRET = re.compile("key|secret|token|pass|credential|sig", re.IGNORECASE)
_PASSWORD = re.compile("password|passwd|pwd|passphrase|secret|token", re.IGNORECASE)
_QUERY = re.compile(
    r"([?&;][^=\s&;]*(?:password|passwd|pwd|passphrase|secret|token)[^=\s&;]*=)[^&;\s'\"]*", re.IGNORECASE
)
_USER = re.compile(r"(://[^\s:/@]*):[^\s/@]*@")


def is_uri(place: str) -> bool:
    """Whether this is a URI and no path.

    >>> is_uri("s3://bucket/run"), is_uri("runs/chat")
    (True, False)
    """
    return "://" in place


def shown(uri: str) -> str:
    """The URI without user, password, query and fragment; a path as it is.

    >>> shown("s3://key:secret@bucket/runs/chat/?endpoint_override=host&token=t")
    's3://bucket/runs/chat'
    """
    if not is_uri(uri):
        return uri
    scheme, _, rest = uri.partition("://")
    place = re.split(r"[?#]", rest, maxsplit=1)[0]
    host, slash, path = place.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}".rstrip("/")


def has_credentials(uri: str) -> bool:
    """Whether a URI names a user, or has a query key that sounds like a secret.

    >>> has_credentials("s3://key:secret@bucket/chats"), has_credentials("s3://bucket/chats?region=eu")
    (True, False)
    """
    if not is_uri(uri):
        return False
    place, _, query = uri.partition("://")[2].partition("?")
    return "@" in place.split("/", 1)[0] or any(_SECRET.search(key) for key in parse_qs(query, keep_blank_values=True))


def sounds_secret(key: str) -> bool:
    """Whether a query key of a database's URL holds a password, rather than say where one lies.

    >>> sounds_secret("sslpassword"), sounds_secret("passfile")
    (True, False)
    """
    return bool(_PASSWORD.search(key))


def blotted(text: str) -> str:
    """A text with the passwords of all URLs in it blotted out.

    >>> blotted("ledger: postgresql://u:p@host/db?sslpassword=p&sslmode=require")
    'ledger: postgresql://u:***@host/db?sslpassword=***&sslmode=require'
    """
    return _QUERY.sub(r"\1***", _USER.sub(r"\1:***@", text))


def identity(uri: str) -> str:
    """Digest that names the place, whatever the credentials: equal buckets of two servers are two places."""
    try:
        servers = parse_qs(urlsplit(uri).query).get("endpoint_override", [])
    except ValueError:
        servers = []
    return digest_json([shown(uri), servers])


def open_uri(field: str, uri: str, kind: type[RayPrivacyError]) -> tuple[fs.FileSystem, str]:
    """The pyarrow filesystem of a URI, and the path inside it."""
    try:
        filesystem, path = fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError, ValueError) as error:
        why = reason(error)
    else:
        return filesystem, path
    raise kind(f"{field} is '{shown(uri)}', which cannot be opened ({why}): correct the URI or the access.")


def reason(error: BaseException) -> str:
    """Why a store refused, in a word or two: the text of an exception may quote the URI, so it is left out."""
    code = re.search(r"AWS Error ([A-Z_]+)", str(error))
    return code[1] if code else getattr(error, "strerror", None) or type(error).__name__
