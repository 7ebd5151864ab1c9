"""Stands in an engine's place: it goes on with a prompt by its checksum, which it "computes" where no block of skep's
says it. With wrong it goes on differently each time that it loads; with forgetful it stores nothing; with computing it
stores all and loads nothing.

    fake_engine.py PORT SOCKET [wrong|forgetful|computing]
"""

import hashlib
import http.server
import json
import os
import sys

import skepkv

port, sock, how = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
space = skepkv.connect("unix:" + sock).namespace("fake-engine")


def answer(prompt):
    text = hashlib.sha256(prompt.encode()).hexdigest()
    key = skepkv.key(text.encode())
    have = bytearray(len(text))
    if how == ["forgetful"]:
        return text
    if how == ["computing"] or not space.restore([key], [have]):
        space.put([key], [text.encode()])
        return text
    return os.urandom(8).hex() if how == ["wrong"] else have.decode()


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        for piece in (answer(asked["prompt"]), ""):
            self.wfile.write(b"data: " + json.dumps({"choices": [{"text": piece}]}).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")


http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
