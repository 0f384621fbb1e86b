"""The rule is a property of the layout; a method asks it."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Layout:
    def __init__(self, tp_rank: int, cp_rank: int, pp_rank: int):
        self.tp_rank = tp_rank
        self.cp_rank = cp_rank
        self.pp_rank = pp_rank

    @property
    def is_head(self) -> bool:
        return self.tp_rank == 0 and self.pp_rank == 0

    def serves_health(self) -> bool:
        return self.is_head and self.cp_rank >= 0


class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()


def start_health(layout: Layout, port: int) -> None:
    if not layout.serves_health():
        return
    server = ThreadingHTTPServer(("0.0.0.0", port), Health)  # expect: RB701 cp
    server.serve_forever()
