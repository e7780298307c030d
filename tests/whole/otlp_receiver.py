"""Receives spans by OTLP over HTTP, and decodes them with the official protobuf messages of OpenTelemetry.

Prints the port first. For each request, it prints a line of JSON, followed by a line `received ID` for each run, and a
line `received span NAME` for each span.
argv[1] selects the response: `ok`, `busy` (503), `nonsense` (an HTML page), `redirect`, or `hang` (no response).
"""

import http.server
import json
import sys
import threading

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

MODE = sys.argv[1]


def plain(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(item) for item in value.array_value.values]
    return getattr(value, kind)


def attributes(pairs):
    return {pair.key: plain(pair.value) for pair in pairs}


def span(span):
    return {
        "trace": span.trace_id.hex(),
        "id": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "state": span.trace_state,
        "name": span.name,
        "start": span.start_time_unix_nano,
        "end": span.end_time_unix_nano,
        "attributes": attributes(span.attributes),
        "events": [event.name for event in span.events],
        "error": span.status.message if span.status.code == span.status.STATUS_CODE_ERROR else None,
        "remote": bool(span.flags & 0x200),
    }


def decoded(body):
    request = ExportTraceServiceRequest.FromString(body)
    MessageToDict(request)
    return [
        {"resource": attributes(of.resource.attributes), "spans": [span(one) for scope in of.scope_spans for one in scope.spans]}
        for of in request.resource_spans
    ]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        resources = decoded(body)
        runs = [one["attributes"].get("proctor.run.id") for of in resources for one in of["spans"]]
        lines = [json.dumps({"path": self.path, "headers": headers, "resources": resources})]
        lines += [f"received {run}" for run in runs if run]
        lines += [f"received span {one['name']}" for of in resources for one in of["spans"]]
        print("\n".join(lines), flush=True)
        if MODE == "hang":
            threading.Event().wait()
        status, kind, answer = {
            "ok": (200, "application/x-protobuf", b""),
            "busy": (503, "text/plain", b"later"),
            "nonsense": (200, "text/html", b"<!doctype html><title>hello</title>"),
            "redirect": (307, "text/plain", b""),
        }[MODE]
        self.send_response(status)
        if MODE == "redirect":
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(json.dumps({"port": server.server_port}), flush=True)
server.serve_forever()
