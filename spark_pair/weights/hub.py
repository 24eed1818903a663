"""Questions to the Hub: which commit, which files, may we have them.

Every failure ends as a HubError: one sentence about what is wrong and what to do next. The token
goes into request headers and nowhere else.
"""

from __future__ import annotations

import contextlib
import email.utils
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal
from urllib.parse import quote, urljoin, urlsplit

import httpx2
from huggingface_hub import get_session
from huggingface_hub.errors import OfflineModeIsEnabled

from ..errors import SparkPairError
from ..jobs.words import duration, without_keys
from .manifest import SHORTEST_PREFIX, File, Manifest, ManifestError, is_commit, is_prefix

ENDPOINT = "https://huggingface.co"

Kind = Literal[
    "token", "terms", "right", "repository", "revision", "file", "busy", "server", "network", "tls",
    "answer",
]  # fmt: skip
TEMPORARY: frozenset[Kind] = frozenset({"busy", "server", "network"})
"""What may be gone at the next try."""

TRIES = 5
PAGES_AT_MOST = 1000
COMMIT_PAGES_AT_MOST = 20
ASK_SECONDS = 30.0
CONNECT_SECONDS = 15.0
STORE_SECONDS = 5.0
"""For a question to the content store that one can do without."""
LONGEST_WAIT_SECONDS = 3600.0
"""The Hub's own limits count by the hour; whoever asks for longer is not believed."""

_REDIRECTS = range(300, 400)
_REDIRECTS_AT_MOST = 5


class HubError(SparkPairError):
    """The Hub did not give what was asked for; the message says why and what to do next."""

    def __init__(self, kind: Kind, words: str, retry_after: float | None = None) -> None:
        super().__init__(without_keys(words))
        self.kind = kind
        self.retry_after = retry_after
        """Seconds the Hub asks to wait; None when it names none."""

    @property
    def temporary(self) -> bool:
        """Whether the same request may succeed later, unchanged."""
        return self.kind in TEMPORARY


class Hub:
    """One Hub, asked with one token (or none)."""

    def __init__(
        self,
        endpoint: str = ENDPOINT,
        token: str | None = None,
        *,
        sleep: Callable[[float], object] = time.sleep,
        wait_at_most: float | None = None,
    ) -> None:
        """`sleep` may raise to end a wait early. `wait_at_most` seconds in all are spent on
        failures that may pass; None for no such limit, where nobody sits in front of it."""
        self.endpoint = endpoint.rstrip("/")
        self.has_token = bool(token)
        # Made here: the client's own would look for a token in the account's folder.
        self.headers: Mapping[str, str] = {"User-Agent": "spark-pair"}
        if token:
            self.headers = {**self.headers, "Authorization": f"Bearer {token}"}
        self._sleep = sleep
        self._wait_at_most = wait_at_most
        self._waited = 0.0

    def resolve(self, repo: str, revision: str) -> str:
        """The whole commit that a commit or the beginning of one means.

        A prefix is looked for at the tip of main, at the tips of all branches and tags, then in
        main's history. Raises HubError when there is none or more than one.
        """
        if is_commit(revision):
            commit = self._tip(repo, revision)
            if commit != revision:
                raise HubError(
                    "answer", f"{self._host} answers {commit!r} for {repo} at {revision}."
                )
            return commit
        if not is_prefix(revision):
            raise HubError(
                "revision",
                f"{revision!r} is no commit of {repo}; give its first {SHORTEST_PREFIX} or more "
                "hex digits, never a branch, whose content changes.",
            )
        for candidates in (self._tip_of_main, self._tips, self._history):
            found = {commit for commit in candidates(repo) if commit.startswith(revision)}
            if len(found) > 1:
                raise HubError(
                    "revision",
                    f"{revision} is the beginning of {len(found)} commits of {repo}: "
                    f"{', '.join(sorted(found))}. Give the one that is meant in full.",
                )
            if found:
                return found.pop()
        raise HubError(
            "revision",
            f"{repo} has no commit that begins with {revision}, neither among its branches and "
            f"tags nor in main's history; check the revision on {self.endpoint}/{repo}/commits.",
        )

    def manifest(self, repo: str, commit: str) -> Manifest:
        """Every file of the repository at a whole commit. Raises HubError."""
        url: str | None = self.api(repo, f"tree/{commit}?recursive=true&expand=false")
        files: list[File] = []
        for _ in range(PAGES_AT_MOST):
            if url is None:
                break
            response = self.ask("GET", url, repo, commit)
            files += self._files(response, repo)
            url = self._next(response)
        else:
            raise HubError("answer", f"The list of files of {repo} at {self._host} has no end.")
        try:
            return Manifest(repo, commit, tuple(files))
        except ManifestError as error:
            raise HubError("answer", f"{self._host} lists files that cannot be: {error}") from error

    def probe(self, repo: str, commit: str, path: str) -> None:
        """Ask for one file without fetching it: raises HubError unless it would be given."""
        self.ask("HEAD", self.url_of(repo, commit, path), repo, commit, path)

    def xet_read_token(self, repo: str, commit: str) -> tuple[str, str, int]:
        """Where the content store of a repository is, a token for it, its end (Unix seconds).

        Tried once: whoever fetches has a patience of its own, and others wait for the same token.
        """
        url = self.xet_token_url(repo, commit)
        headers = self._ask_once("GET", url, repo, commit, "").headers
        try:
            return (
                headers["X-Xet-Cas-Url"],
                headers["X-Xet-Access-Token"],
                int(headers["X-Xet-Token-Expiration"]),
            )
        except (KeyError, ValueError) as error:
            raise HubError(
                "answer", f"{self._host} gives no way to the content store of {repo} ({error})."
            ) from error

    def bytes_into_chunk(self, store: str, token: str, xet_hash: str, at: int) -> int:
        """How far byte `at` of a file is behind the beginning of the store's chunk that holds it.

        The store's own answer, and its own token: the Hub's does not go there. Raises HubError.
        """
        url = f"{store.rstrip('/')}/v1/reconstructions/{xet_hash}"
        headers = {
            "User-Agent": self.headers["User-Agent"],
            "Authorization": f"Bearer {token}",
            "Range": f"bytes={at}-{at}",
        }
        timeout = httpx2.Timeout(STORE_SECONDS)
        with self.network_errors():
            response = get_session().get(url, headers=headers, timeout=timeout)
        answer = self._json(response) if response.is_success else None
        count = answer.get("offset_into_first_range") if isinstance(answer, dict) else None
        if type(count) is not int or count < 0:
            raise HubError("answer", f"The content store of {self._host} names no chunk of a file.")
        return count

    def url_of(self, repo: str, commit: str, path: str) -> str:
        """Where a file is."""
        return f"{self.endpoint}/{repo}/resolve/{commit}/{quote(path)}"

    def xet_token_url(self, repo: str, commit: str) -> str:
        """Where a token for the content store is given."""
        return self.api(repo, f"xet-read-token/{commit}")

    def api(self, repo: str, rest: str) -> str:
        """An address below the repository's own, for programs."""
        return f"{self.endpoint}/api/models/{repo}/{rest}"

    def ask(
        self, method: str, url: str, repo: str, revision: str = "", path: str = ""
    ) -> httpx2.Response:
        """One request, tried again while the failure may pass; raises HubError."""
        for attempt in range(TRIES):
            began = time.monotonic()
            try:
                return self._ask_once(method, url, repo, revision, path)
            except HubError as error:
                if not error.temporary or attempt == TRIES - 1:
                    raise
                self._wait(error, attempt, time.monotonic() - began)
        raise AssertionError("unreachable")

    def _wait(self, error: HubError, attempt: int, took: float) -> None:
        """Wait for what may pass; raises it again when that would take too long."""
        seconds = wait_before(attempt, error.retry_after)
        self._waited += took + seconds
        if self._wait_at_most is not None and self._waited > self._wait_at_most:
            asked = f" It asks to wait {duration(seconds)};" if error.retry_after else " Here"
            raise HubError(
                error.kind,
                f"{error}{asked} no more than {self._wait_at_most:.0f} s are spent on waiting.",
                error.retry_after,
            ) from error
        self._sleep(seconds)

    @contextlib.contextmanager
    def stream(
        self, url: str, headers: Mapping[str, str], stall_seconds: float, *, repo: str, path: str
    ) -> Iterator[httpx2.Response]:
        """An open answer to a GET with status 2xx; tried once. Raises HubError."""
        timeout = httpx2.Timeout(stall_seconds, connect=CONNECT_SECONDS)
        wanted = {**self.headers, "Accept-Encoding": "identity", **headers}
        with self.network_errors():
            request = get_session().stream(
                "GET", url, headers=wanted, timeout=timeout, follow_redirects=True
            )
            with request as response:
                if not response.is_success:
                    response.read()
                    raise self._refusal(response, repo, "", path)
                yield response

    @contextlib.contextmanager
    def network_errors(self) -> Iterator[None]:
        """Turn what the network does to a request into a HubError."""
        try:
            yield
        except OfflineModeIsEnabled as error:
            raise HubError(
                "answer",
                "HF_HUB_OFFLINE is set, so the Hub is not asked; unset it to download.",
            ) from error
        except (httpx2.TransportError, httpx2.StreamError) as error:
            raise self._unreachable(error) from error
        except (httpx2.InvalidURL, httpx2.TooManyRedirects) as error:
            raise HubError("answer", f"{self._host} cannot be asked: {error}.") from error

    @property
    def _host(self) -> str:
        return urlsplit(self.endpoint).netloc or self.endpoint

    def _ask_once(
        self, method: str, url: str, repo: str, revision: str, path: str
    ) -> httpx2.Response:
        headers = {**self.headers, "Accept-Encoding": "identity"} if path else dict(self.headers)
        timeout = httpx2.Timeout(ASK_SECONDS, connect=CONNECT_SECONDS)
        for _ in range(_REDIRECTS_AT_MOST):
            with self.network_errors():
                response = get_session().request(
                    method, url, headers=headers, timeout=timeout, follow_redirects=False
                )
            target = urljoin(url, response.headers.get("Location", ""))
            if response.status_code not in _REDIRECTS:
                break
            if urlsplit(target)[:2] != urlsplit(url)[:2]:
                if path:
                    return response  # to where the content is kept: it would be given
                raise HubError(
                    "answer",
                    f"{self._host} sends us to {target}; name that server as the Hub if it is one.",
                )
            url = target
        if response.is_success:
            return response
        raise self._refusal(response, repo, revision, path)

    def _tip(self, repo: str, revision: str) -> str:
        answer = self._json(self.ask("GET", self.api(repo, f"revision/{revision}"), repo, revision))
        commit = answer.get("sha") if isinstance(answer, dict) else None
        if not isinstance(commit, str) or not is_commit(commit):
            raise HubError("answer", f"{self._host} names no commit for {repo} at {revision}.")
        return commit

    def _tip_of_main(self, repo: str) -> Iterator[str]:
        yield self._tip(repo, "main")

    def _tips(self, repo: str) -> Iterator[str]:
        answer = self._json(self.ask("GET", self.api(repo, "refs"), repo, "refs"))
        for group in answer.values() if isinstance(answer, dict) else ():
            for ref in group if isinstance(group, list) else ():
                commit = ref.get("targetCommit") if isinstance(ref, dict) else None
                if isinstance(commit, str) and is_commit(commit):
                    yield commit

    def _history(self, repo: str) -> Iterator[str]:
        url: str | None = self.api(repo, "commits/main")
        for _ in range(COMMIT_PAGES_AT_MOST):
            if url is None:
                return
            response = self.ask("GET", url, repo, "main")
            answer = self._json(response)
            for entry in answer if isinstance(answer, list) else ():
                commit = entry.get("id") if isinstance(entry, dict) else None
                if isinstance(commit, str) and is_commit(commit):
                    yield commit
            url = self._next(response)

    def _json(self, response: httpx2.Response) -> Any:
        try:
            return response.json()
        except ValueError as error:
            raise HubError(
                "answer",
                f"{self._host} answers something that is not the Hub's (no JSON at "
                f"{response.url.path}); look for a proxy or a login page between.",
            ) from error

    def _files(self, response: httpx2.Response, repo: str) -> list[File]:
        answer = self._json(response)
        try:
            if not isinstance(answer, list):
                raise TypeError("no list")
            return [_file(entry) for entry in answer if entry["type"] == "file"]
        except (KeyError, TypeError, AttributeError, ManifestError) as error:
            raise HubError(
                "answer", f"{self._host} describes a file of {repo} in a way unknown here: {error}."
            ) from error

    def _next(self, response: httpx2.Response) -> str | None:
        """The next page, which must be of the same server since the token goes there too."""
        url = response.links.get("next", {}).get("url")
        if not url:
            return None
        target = urljoin(str(response.url), url)
        if urlsplit(target)[:2] != urlsplit(str(response.url))[:2]:
            raise HubError("answer", f"{self._host} sends us to {target} for more of its list.")
        return target

    def _unreachable(self, error: Exception) -> HubError:
        """Words for a failure below HTTP."""
        causes = list(_causes(error))
        if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
            return HubError(
                "tls",
                f"The certificate of {self._host} is not accepted ({causes[-1]}); check this "
                "machine's clock and whether a proxy changes encrypted traffic.",
            )
        if any(isinstance(cause, socket.gaierror) for cause in causes):
            return HubError(
                "network",
                f"The name {self._host} cannot be resolved; check DNS and the network of this "
                "machine.",
            )
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            return HubError(
                "network",
                f"{self._host} cannot be reached ({error or 'no answer'}); check the network, the "
                "proxy and the firewall of this machine.",
            )
        return HubError(
            "network",
            f"The connection to {self._host} broke ({type(error).__name__}: {error}); run it again,"
            " what is there already is kept.",
        )

    def _refusal(self, response: httpx2.Response, repo: str, revision: str, path: str) -> HubError:
        """Words for an answer that is no success."""
        status, code = response.status_code, response.headers.get("X-Error-Code", "")
        said = response.headers.get("X-Error-Message", "").strip().rstrip(".")
        page = f"{self.endpoint}/{repo}"
        if status == 401 and self.has_token:
            return HubError(
                "token",
                f"{self._host} does not accept the token (401{_also(said)}); make a new one at "
                f"{self.endpoint}/settings/tokens and set it as HF_TOKEN or in the vault.",
            )
        if status == 401 and code == "RepoNotFound":
            return HubError(
                "repository",
                f"{self._host} shows no repository {repo} without a token (401): its name is "
                "wrong, or it is private and needs a token (HF_TOKEN or the vault).",
            )
        if status == 401:
            return HubError(
                "token",
                f"{repo} is given only to those who logged in (401): accept its terms on {page}, "
                "then set a token as HF_TOKEN or in the vault.",
            )
        if status == 403 and (code == "GatedRepo" or not said):
            return HubError(
                "terms",
                f"The token's account may not have {repo} (403{_also(said)}): open {page} while "
                "logged in to that account and accept the terms; a fine-grained token also needs "
                "the right to read public gated repositories.",
            )
        if status == 403:
            return HubError(
                "right",
                f"{self._host} refuses {repo} (403: {said}); see what it asks for on {page}, and "
                "whether the token has the right to read gated repositories.",
            )
        if status == 404:
            return self._absent(code, repo, revision, path)
        if status == 429:
            return HubError(
                "busy",
                f"{self._host} asks for fewer requests (429); wait some minutes and run it again, "
                "what is there already is kept. With a token the limit is higher.",
                retry_after(response.headers.get("Retry-After")),
            )
        if status >= 500 or status == 408:
            return HubError(
                "server",
                f"{self._host} has a fault of its own (HTTP {status}{_also(said)}); run it again "
                "later, what is there already is kept.",
                retry_after(response.headers.get("Retry-After")),
            )
        return HubError(
            "answer", f"{self._host} answers HTTP {status}{_also(said)} for {path or repo}."
        )

    def _absent(self, code: str, repo: str, revision: str, path: str) -> HubError:
        if code == "RevisionNotFound" or (not code and revision and not path):
            return HubError(
                "revision",
                f"{repo} has no revision {revision} (404); check it on "
                f"{self.endpoint}/{repo}/commits.",
            )
        if code == "EntryNotFound" or (not code and path):
            return HubError(
                "file",
                f"{repo} has no file {path or '(none named)'} at {revision[:8] or 'this commit'} "
                "(404); correct the list of files or the revision.",
            )
        return HubError(
            "repository",
            f"{self._host} has no repository {repo} (404) that "
            f"{'this token may see' if self.has_token else 'may be seen without a token'}; check "
            "its name.",
        )


def wait_before(attempt: int, asked: float | None = None) -> float:
    """Seconds before trying again after try `attempt` (from 0): 1, 2, 4 … 30, or what was asked."""
    if asked is not None:
        return min(asked, LONGEST_WAIT_SECONDS)
    return min(2.0 ** min(attempt, 5), 30.0)


def retry_after(value: str | None) -> float | None:
    """Seconds meant by a Retry-After header: a number or a date; None when it is neither."""
    if value is None:
        return None
    if re.fullmatch(r"\d{1,9}", value.strip()):
        return float(value)
    try:
        when = email.utils.parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    return max(0.0, when.timestamp() - time.time())


def _also(said: str) -> str:
    return f": {said}" if said else ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _file(entry: Mapping[str, Any]) -> File:
    """One entry of the Hub's list."""
    large = entry.get("lfs")
    return File(
        entry["path"],
        large["size"] if large else entry["size"],
        entry["oid"],
        large["oid"] if large else None,
        entry.get("xetHash"),
    )
