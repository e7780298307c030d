"""Speaks the API of TiDB Cloud Zero over HTTPS, and hands out a real database server.

Arguments: mode, certificate, key, and the host, port, user and password of the server. Prints the port first, and then a
line for each request. Modes: `ok`; `busy` (503 with a message); `nonsense` (an HTML page); `expired` (an instance that
has ended); `gone` (first a server that does not exist, then the real one).
"""

import datetime
import http.server
import json
import ssl
import sys

MODE, CERTIFICATE, KEY, HOST, PORT, USER, PASSWORD = sys.argv[1:]
served = 0


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        global served
        served += 1
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        print(f"{self.path} {body['tag']}", flush=True)
        if MODE == "busy":
            return self.answer(503, json.dumps({"code": 14, "message": "no capacity"}))
        if MODE == "nonsense":
            return self.answer(200, "<html>hello</html>")
        hours = -1 if MODE == "expired" else 24
        expires = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=hours)
        port = 1 if MODE == "gone" and served == 1 else int(PORT)
        connection = {"host": HOST, "port": port, "username": USER, "password": PASSWORD}
        instance = {
            "id": "1",
            "connection": connection,
            "connectionString": f"mysql://{USER}:{PASSWORD}@{HOST}:{port}/test",
            "expiresAt": expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "claimInfo": {"claimUrl": "https://example.org/claim"},
        }
        self.answer(201, json.dumps({"instance": instance}))

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *arguments):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(CERTIFICATE, KEY)
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
