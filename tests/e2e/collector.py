"""A collector of OpenTelemetry on loopback: takes traces over OTLP/HTTP, as protobuf and as JSON, and keeps them."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

SERVER = 2


class Span:
    """One span, with what made it."""

    def __init__(self, span, resource):
        self.trace, self.id, self.parent = span["traceId"], span["spanId"], span.get("parentSpanId", "")
        self.name, self.kind, self.flags = span["name"], span["kind"], span["flags"]
        self.state, self.status = span.get("traceState", ""), span.get("status", {})
        self.start, self.end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
        self.attributes = plain(span.get("attributes", []))
        self.resource = resource

    @property
    def took(self):
        """Seconds."""
        return (self.end - self.start) / 1e9

    def __repr__(self):
        return f"{self.name}({self.took * 1e3:.3f} ms, {self.attributes})"


def plain(attributes):
    """Attributes as a dict."""

    def value(any_value):
        (kind, said), = any_value.items()
        if kind == "arrayValue":
            return [value(each) for each in said["values"]]
        return int(said) if kind == "intValue" else said

    return {pair["key"]: value(pair["value"]) for pair in attributes}


def from_protobuf(body):
    """The same dict as JSON has it: ids in hexadecimal, kinds as numbers."""
    message = ExportTraceServiceRequest()
    message.ParseFromString(body)
    export = MessageToDict(message, use_integers_for_enums=True)
    for resource in export["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in {"traceId", "spanId", "parentSpanId"} & set(span):
                    span[name] = base64.b64decode(span[name]).hex()
    return export


class Collector:
    """Listens while it is used with `with`."""

    def __init__(self, port=0):
        self.bodies, self.headers, self.spans = [], [], []
        self.more = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                is_known = self.path == "/v1/traces"
                if is_known:
                    collector.take(dict(self.headers.items()), body)
                self.send_response(200 if is_known else 404)
                self.send_header("content-type", self.headers["content-type"])
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def take(self, headers, body):
        """One message."""
        headers = {name.lower(): value for name, value in headers.items()}
        is_json = headers["content-type"] == "application/json"
        export = json.loads(body) if is_json else from_protobuf(body)
        with self.more:
            self.bodies.append(body)
            self.headers.append(headers)
            for of_resource in export["resourceSpans"]:
                resource = plain(of_resource["resource"]["attributes"])
                for scope in of_resource["scopeSpans"]:
                    self.spans += [Span(span, resource) for span in scope["spans"]]
            self.more.notify_all()

    def roots(self):
        """The root of each trace; a trace comes in one piece."""
        return [span for span in self.spans if span.kind == SERVER]

    def wait_roots(self, count, within=30):
        """The roots, once there are so many."""
        with self.more:
            enough = self.more.wait_for(lambda: len(self.roots()) >= count, within)
            assert enough, f"{len(self.roots())} instead of {count} traces within {within} s"
            return self.roots()
