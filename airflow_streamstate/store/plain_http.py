"""One plain HTTP request without a body: for what the client library of an object store cannot ask.

obstore knows neither a delete under a condition nor the checksums that a server keeps.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping

from airflow_streamstate.store.answers import Answer, RequestFailure
from airflow_streamstate.store.objects_errors import classify

_CODE = re.compile(rb"<Code>\s*([\w.]+)\s*</Code>")
_MESSAGE = re.compile(rb"<Message>\s*([^<]{1,300})", re.DOTALL)
_MOST_BODY_BYTES = 65_536


def ask(method: str, url: str, headers: Mapping[str, str], timeout_seconds: float) -> Mapping[str, str]:
    """Send one request, once; the headers of its answer, by their names in lower case.

    Raises:
        RequestFailure: it was not answered with success. Its reason holds nothing of the address.
    """
    request = urllib.request.Request(url, method=method, headers=dict(headers))  # noqa: S310 - the store's own endpoint
    try:
        with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:  # noqa: S310
            answer.read()
            return {name.lower(): value for name, value in answer.headers.items()}
    except urllib.error.HTTPError as error:
        raise _of_answer(error) from None
    except urllib.error.URLError as error:
        raise _of_connection(error.reason) from None
    except (OSError, http.client.HTTPException) as error:
        raise _of_connection(error) from None


def _of_answer(error: urllib.error.HTTPError) -> RequestFailure:
    try:
        body = error.read(_MOST_BODY_BYTES)
    except (OSError, http.client.HTTPException):
        body = b""
    finally:
        error.close()
    code = found[1].decode() if (found := _CODE.search(body)) else error.headers.get("x-ms-error-code", "")
    reason = found[1].decode(errors="replace").strip() if (found := _MESSAGE.search(body)) else str(error.reason)
    return RequestFailure(classify(error.code, code), error.code, code or str(error.code), reason)


def _of_connection(reason: object) -> RequestFailure:
    name = type(reason).__name__
    if isinstance(reason, ssl.SSLCertVerificationError):
        return RequestFailure(Answer.REFUSED, 0, "CertificateError", str(reason))
    if isinstance(reason, ConnectionRefusedError | socket.gaierror):
        return RequestFailure(Answer.NOT_DONE, 0, name, str(reason))
    return RequestFailure(Answer.UNKNOWN, 0, name, str(reason))
