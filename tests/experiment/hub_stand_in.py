"""A small server that speaks the part of the Hugging Face Hub's API that `drl push` and `drl pull` need."""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "hf_good"


class StandIn(ThreadingHTTPServer):
    """Repositories in memory. `with StandIn() as hub:` serves at `hub.endpoint`."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.stored: dict[str, bytes] = {}  # large files by checksum
        self.large: tuple[str, ...] = ()  # suffixes of files that are uploaded as large ones
        self.answers: dict[
            str, tuple[int, dict[str, str], bytes]
        ] = {}  # of paths that should fail: code, headers, body
        self.private: set[str] = set()
        self.asked: list[str] = []

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def sha(self, name):
        files = self.repositories[name]
        return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    server: StandIn

    def log_message(self, *_):
        pass

    def answer(self, content, code=200, **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def respond(self):
        hub, path = self.server, self.path.partition("?")[0]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        hub.asked.append(f"{self.command} {path}")
        for ending, (code, headers, content) in hub.answers.items():
            if path.endswith(ending):
                self.answer(content, code, **headers)
                return
        if self.command != "GET" and self.headers.get("Authorization") != f"Bearer {TOKEN}" and "/lfs/" not in path:
            self.answer({"error": "no token"}, 401)
        elif path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            if name in hub.repositories:
                self.answer({"error": "exists", "url": f"{hub.endpoint}/{name}"}, 409)
            else:
                hub.repositories[name] = {}
                hub.private |= {name} if asked.get("visibility") == "private" else set()
                self.answer({"url": f"{hub.endpoint}/{name}"})
        elif path == "/api/validate-yaml":
            self.answer({})
        elif path.startswith("/lfs/"):
            self.large_file(path.rpartition("/")[2], body)
        elif path.endswith("/info/lfs/objects/batch"):
            objects = [
                each | {"actions": {"upload": {"href": f"{hub.endpoint}/lfs/{each['oid']}"}}}
                for each in json.loads(body)["objects"]
            ]
            self.answer({"transfer": "basic", "objects": objects})
        else:
            parts = path.removeprefix("/api/models").strip("/").split("/")
            name, rest = "/".join(parts[:2]), parts[2:]
            if name not in hub.repositories:
                self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
            else:
                self.repository(name, hub.repositories[name], rest, body)

    do_GET = do_POST = do_PUT = respond  # noqa: N815

    def large_file(self, oid, body):
        if self.command == "PUT":
            assert hashlib.sha256(body).hexdigest() == oid
            self.server.stored[oid] = body
            self.answer(b"")
        else:
            self.answer(self.server.stored[oid])

    def repository(self, name, files, rest, body):
        hub = self.server
        match rest:
            case [] | ["revision", _]:
                if rest and rest[1] not in ("main", hub.sha(name)):
                    self.answer({"error": "Invalid rev"}, 404, X_Error_Code="RevisionNotFound")
                    return
                siblings = [{"rfilename": file, "size": len(content)} for file, content in files.items()]
                about = {"id": name, "sha": hub.sha(name), "private": name in hub.private}
                self.answer(about | {"siblings": siblings})
            case ["preupload", "main"]:
                modes = [
                    {
                        "path": file,
                        "uploadMode": "lfs" if file.endswith(hub.large) else "regular",
                        "shouldIgnore": False,
                    }
                    for file in (each["path"] for each in json.loads(body)["files"])
                ]
                self.answer({"files": modes})
            case ["commit", "main"]:
                self.commit(name, files, [json.loads(line) for line in body.splitlines()])
            case ["resolve", _, file] if file in files:
                content = files[file]
                if content.startswith(b"lfs:"):
                    self.answer(b"", 302, Location=f"{hub.endpoint}/lfs/{content[4:].decode()}")
                else:
                    self.answer(content)
            case _:
                self.answer({"error": "Entry not found"}, 404, X_Error_Code="EntryNotFound")

    def commit(self, name, files, changes):
        for change in changes:
            value = change["value"]
            if change["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif change["key"] == "lfsFile":
                files[value["path"]] = f"lfs:{value['oid']}".encode()
            elif change["key"] == "deletedFile":
                del files[value["path"]]
        url = f"{self.server.endpoint}/{name}/commit/{self.server.sha(name)}"
        self.answer({"commitUrl": url, "commitOid": self.server.sha(name)})
