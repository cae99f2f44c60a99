"""Agents on the Hugging Face Hub: `drl.push` and `drl.pull`, through `huggingface_hub` (extra `hub`).

Anybody can upload to the Hub. Three files are downloaded, by fixed names and up to a limit of bytes. They are checked
like any agent before the new folder appears under its name, and nothing in them is run.
"""

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drl.core.agent_files import open_agent, read_agent, readme
from drl.core.errors import BadInput, DrlError, MissingExtra, UnusableFile, html_table, one_line
from drl.core.safe_files import MOST_TEXT, MOST_WEIGHTS, check_out, read_inside
from drl.core.state_files import read_json
from drl.core.variants import VARIANTS
from drl.runs.folder.finished import AgentLike, agent_folder
from drl.runs.folder.run_folder import KEPT

WEIGHTS = re.compile(r"weights-[0-9a-f]{12}\.safetensors")
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40,64}")
PATIENCE = 30.0  # seconds for an answer, and between two pieces of a file


@dataclass(frozen=True)
class Pushed:
    """An agent that `push` uploaded."""

    repository: str  # owner/name
    url: str

    def __str__(self) -> str:
        return self.url

    def _repr_html_(self) -> str:
        return html_table(["repository", "address"], [[self.repository, self.url]])


@dataclass(frozen=True)
class Pulled:
    """An agent that `pull` downloaded. `drl.load_agent(pulled.folder)` loads it."""

    repository: str  # owner/name
    folder: Path

    def __str__(self) -> str:
        return str(self.folder)

    def _repr_html_(self) -> str:
        return html_table(["repository", "folder"], [[self.repository, self.folder]])


def push(
    agent: AgentLike, repository: str, *, which: str | None = None, private: bool = False, console: bool = False
) -> Pushed:
    """Upload an agent to `owner/name` on the Hugging Face Hub, with the token in HF_TOKEN. The repository is made if it
    does not exist.

    `agent` is a run, an experiment (its newest run), an agent folder or an agent. Of a run, `which` is final (the
    newest), best (by the window of training) or best-evaluated. `private` makes a new repository private.
    """
    if which is not None and which not in KEPT:
        raise BadInput(f"--which is {which!r}; expected {', '.join(KEPT)}")
    with agent_folder(agent, which) as folder:
        pushed = Pushed(repository, _push(folder, repository, private))
    if console:
        print(pushed)
    return pushed


def _push(folder: Path, repository: str, private: bool) -> str:
    """Upload the agent in `folder` in one commit, in place of an earlier one; return its address."""
    hub = _opened(repository)
    card, _ = read_agent(folder)
    weights = _weights_of(card, str(folder))
    described = os.path.lexists(folder / "README.md")  # a user may have deleted it
    files = {
        "README.md": read_inside(folder, folder / "README.md") if described else readme(card).encode(),
        "card.json": read_inside(folder, folder / "card.json"),
        weights: read_inside(folder, folder / weights, MOST_WEIGHTS),
    }
    if hub.get_token() is None:
        raise BadInput("there is no token of the Hugging Face Hub; set HF_TOKEN, or type: hf auth login")
    api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    with _clear_errors(f"pushing to {repository}", api.endpoint):
        api.create_repo(repository, private=private or None, exist_ok=True)
        info = api.model_info(repository, timeout=PATIENCE)
        if private and not info.private:
            raise BadInput(f"{repository} exists and is public; leave out --private, or choose another name")
        names = [each.rfilename for each in info.siblings or []]
        changes = [hub.CommitOperationAdd(name, content) for name, content in files.items()]
        changes += [hub.CommitOperationDelete(name) for name in names if WEIGHTS.fullmatch(name) and name != weights]
        api.create_commit(repository, changes, commit_message="An agent of drl")
    return f"{api.endpoint}/{repository}"


def pull(
    repository: str, *, out: str | Path | None = None, revision: str | None = None, console: bool = False
) -> Pulled:
    """Download the agent in `owner/name` on the Hugging Face Hub into a new folder. Nothing in it is run.

    `out` is the folder; by default the repository's name, here. `revision` is a branch, a tag or a commit.
    """
    folder = Path(out or repository.rpartition("/")[2])
    if out:
        check_out(folder)
    hub = _opened(repository)
    if os.path.lexists(folder):
        raise BadInput(f"{folder} exists and is not overwritten; choose another --out")
    api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    with _clear_errors(f"pulling {repository}", api.endpoint):
        info = api.model_info(repository, revision=revision, timeout=PATIENCE)
        names = {each.rfilename for each in info.siblings or []}
        if "card.json" not in names:
            raise BadInput(f"{repository} holds no agent of drl: it has no card.json")
        if not isinstance(info.sha, str) or not COMMIT.fullmatch(info.sha):
            raise UnusableFile(f"{api.endpoint} names no commit of {repository}")
        with _draft_folder(folder) as draft:

            def fetch(name: str, most: int) -> None:
                url = hub.hf_hub_url(repository, name, revision=info.sha, endpoint=api.endpoint)
                _download(hub, url, draft / name, most)

            fetch("card.json", MOST_TEXT)
            fetch(_weights_of(read_json(draft / "card.json"), repository), MOST_WEIGHTS)
            if "README.md" in names:
                fetch("README.md", MOST_TEXT)
            card, _ = read_agent(draft)
            if card["variant"] in VARIANTS:  # a plugin's own is checked when it is loaded, with --plugins
                open_agent(draft)
    pulled = Pulled(repository, folder)
    if console:
        print(pulled)
    return pulled


def _opened(repository: str) -> Any:
    """Import the library; raise for an invalid name."""
    if not REPOSITORY.fullmatch(repository):
        raise BadInput(f"repository is {repository!r:.80}; expected owner/name, as on huggingface.co")
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtra("the Hugging Face Hub", "hub", error) from None
    return huggingface_hub


def _weights_of(card: object, source: str) -> str:
    """The file of weights on a card."""
    name = card.get("weights") if isinstance(card, dict) else None
    if not isinstance(name, str) or not WEIGHTS.fullmatch(name):
        raise UnusableFile(f"the card of {source} names the weights {name!r:.80}; expected weights-….safetensors")
    return name


@contextlib.contextmanager
def _draft_folder(out: Path) -> Iterator[Path]:
    """A new folder that becomes `out` at the end, or is removed if the block raises."""
    draft = out.with_name(f".{out.name}.{secrets.token_hex(8)}.part")
    try:
        draft.mkdir(parents=True)
    except OSError as error:
        raise BadInput(f"cannot create {out}: {error.strerror}; choose another --out") from None
    try:
        yield draft
        draft.rename(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _download(hub: Any, url: str, file: Path, most: int) -> None:
    """One file of at most `most` bytes, whatever the server sends."""
    headers = hub.utils.build_hf_headers() | {"Accept-Encoding": "identity"}
    written = 0
    with hub.get_session().stream("GET", url, headers=headers, timeout=PATIENCE) as response:
        if response.status_code == 404:
            raise UnusableFile(f"the repository lacks {file.name}, which belongs to its agent")
        hub.hf_raise_for_status(response)
        try:
            with open(file, "xb") as target:
                for piece in response.iter_bytes(1 << 20):
                    written += len(piece)
                    if written > most:
                        raise UnusableFile(f"{file.name} has more than the {most:,} bytes that are read")
                    target.write(piece)
        except UnusableFile:
            raise
        except Exception as error:
            raise UnusableFile(f"the download of {file.name} broke off: {one_line(error)}; try again") from None


@contextlib.contextmanager
def _clear_errors(doing: str, endpoint: str) -> Iterator[None]:
    """Turn exceptions of the library into one clear line."""
    from huggingface_hub import errors

    try:
        yield
    except DrlError:
        raise
    except errors.HFValidationError as error:
        raise BadInput(f"{doing}: {error}") from None
    except errors.RevisionNotFoundError:
        raise BadInput(f"{doing}: there is no such revision; expected a branch, a tag or a commit") from None
    except errors.HfHubHTTPError as error:
        code = error.response.status_code
        cures = {
            401: "it does not exist, or is private; set HF_TOKEN to a token that may use it",
            403: "your token may not do that; set HF_TOKEN to one that may",
            404: "it does not exist, or is private; check the name, or set HF_TOKEN",
        }
        cure = cures.get(code) or " ".join((error.server_message or "try again later").split())[:200]
        raise BadInput(f"{doing}: {endpoint} answers {code}: {cure}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # of an answer that is not the Hub's
        raise UnusableFile(f"{doing}: {endpoint} answers with something unexpected: {one_line(error)}") from None
    except Exception as error:
        raise BadInput(
            f"{doing}: cannot reach {endpoint}: {one_line(error)}; check the connection, HF_ENDPOINT and HF_HUB_OFFLINE"
        ) from None
