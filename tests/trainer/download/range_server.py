"""Serves a folder over HTTP on loopback, with what Python's own server lacks: ranges, and misbehaviour.

  range_server.py FOLDER LOG [plain] [lengthless] [cut=BYTES] [lost=BYTES]

  plain       no ranges: whole files are sent whatever was asked for
  lengthless  no answer says how many bytes come
  cut=BYTES   the first answer ends after so many bytes of a file; later ones are whole
  lost=BYTES  as cut, and later ones end before their first byte

Prints its port, then "listening". Each request is a line of LOG: the path and the range asked for.
"""

import http.server
import os
import sys

folder, log, *modes = sys.argv[1:]
plain, lengthless = "plain" in modes, "lengthless" in modes
limits = [mode.split("=") for mode in modes if "=" in mode]
cuts = {}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        wanted = self.headers.get("Range", "")
        with open(log, "a") as out:
            out.write(f"{self.path} {wanted}\n")
        try:
            with open(os.path.join(folder, os.path.basename(self.path)), "rb") as file:
                body = file.read()
        except OSError:
            return self.send_error(404)
        begin = 0
        if wanted and not plain:
            begin = int(wanted.removeprefix("bytes=").split("-")[0])
            if begin >= len(body):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        if not lengthless:
            self.send_header("Content-Length", str(len(body) - begin))
        self.end_headers()
        self.wfile.write(body[begin:begin + self.share(len(body) - begin)])

    def share(self, bytes_left):
        for name, value in limits:
            first = not cuts.setdefault(name, False)
            cuts[name] = True
            if first:
                return int(value)
            if name == "lost":
                return 0
        return bytes_left

    def log_message(self, *words):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"port={server.server_port} listening", flush=True)
server.serve_forever()
