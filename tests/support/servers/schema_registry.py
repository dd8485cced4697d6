"""A schema registry: an HTTP server with the parts of Confluent's API that clients use."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class RegistryServer:
    """Stores schemas; with ``user`` it demands basic authentication, ``status`` is the status of
    all responses."""

    def __init__(self, user=None, password=None, tls=None):
        self.schemas = {}
        self.subjects = {}
        self.requests = []
        self.status = None
        self._expected = None
        if user is not None:
            pair = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._expected = f"Basic {pair}"
        self._tls = tls
        self._server = None
        self._port = 0

    def __enter__(self):
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):  # name of http.server
                registry.answer(self, None)

            def do_POST(self):  # name of http.server
                length = int(self.headers["Content-Length"])
                registry.answer(self, json.loads(self.rfile.read(length)))

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        if self._tls is not None:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self):
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{'127.0.0.1' if self._tls is None else 'localhost'}:{self._port}"

    def add(self, subject, schema, kind="AVRO", references=()):
        """Register a schema; return the header for message bodies."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        schema_id = len(self.schemas) + 1
        names = [
            {"name": name, "subject": of, "version": len(self.subjects[of])}
            for name, of in references
        ]
        found = {"schema": text, "schemaType": kind, "references": names}
        known = [number for number, each in self.schemas.items() if each == found]
        schema_id = known[0] if known else schema_id
        self.schemas[schema_id] = found
        versions = self.subjects.setdefault(subject, [])
        if schema_id not in versions:
            versions.append(schema_id)
        return b"\0" + schema_id.to_bytes(4, "big")

    def add_file(self, subject, file, references=()):
        """Register a Protobuf file; return the header for message bodies, without the message
        index."""
        text = base64.b64encode(file.SerializeToString()).decode()
        return self.add(subject, text, "PROTOBUF", references)

    def answer(self, request, body):
        path = urlsplit(request.path)
        self.requests.append(request.path)
        status, found = self._found(list(map(unquote, path.path.split("/")[1:])), path.query, body)
        if self.status is not None:
            status, found = self.status, {"error_code": self.status, "message": "refused"}
        elif self._expected and request.headers.get("Authorization") != self._expected:
            status, found = 401, {"error_code": 401, "message": "who is there?"}
        content = json.dumps(found).encode()
        request.send_response(status)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def _found(self, words, query, body):
        missing = 404, {"error_code": 40403, "message": "not found"}
        if words[0] == "schemas":
            found = self.schemas.get(int(words[2]))
            if found is None:
                return missing
            is_text = found["schemaType"] == "PROTOBUF" and query != "format=serialized"
            found = {**found, "schema": 'syntax = "proto3";'} if is_text else found
            own = {key: each for key, each in found.items() if each not in ("AVRO", [])}
            return 200, own  # a registry does the same for Avro
        subject = words[1]
        if body is not None:
            header = self.add(subject, body["schema"], body.get("schemaType", "AVRO"))
            return 200, {"id": int.from_bytes(header[1:], "big")}
        versions = self.subjects.get(subject)
        if versions is None:
            return missing
        at = len(versions) if words[3] == "latest" else int(words[3])
        return 200, {"subject": subject, "version": at, "id": versions[at - 1]}
