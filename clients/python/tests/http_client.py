"""Requests of the tests of both middlewares."""

import http.client
import json
import threading

from conftest import WAIT_S, sql

UNSET = object()


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.content = response.read()

    @property
    def body(self):
        return json.loads(self.content)

    @property
    def replayed(self):
        return self.headers["idempotent-replayed"] == "true"

    @property
    def replayable(self):
        """All but what is about one connection, one moment or one session."""
        headers = sorted((name.lower(), value) for name, value in self.headers.items())
        others = ("date", "server", "connection", "idempotent-replayed", "set-cookie", "transfer-encoding", "content-length")
        return self.status, [header for header in headers if header[0] not in others], self.content


def send(port, path, key=UNSET, body=None, method="POST", account="ann"):
    """Sends a request; the key is what is between the quotes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    headers = {"Content-Type": "application/json"}
    if account is not None:
        headers["X-Account"] = account
    if key is not UNSET:
        headers["Idempotency-Key"] = f'"{key}"'
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, content, headers)
    answer = Answer(connection.getresponse())
    connection.close()
    return answer


def send_header(port, path, *headers):
    """Sends a request with the header Idempotency-Key as it is given."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.putrequest("POST", path)
    connection.putheader("X-Account", "ann")
    connection.putheader("Content-Length", "0")
    for header in headers:
        connection.putheader("Idempotency-Key", header)
    connection.endheaders()
    answer = Answer(connection.getresponse())
    connection.close()
    return answer


def send_and_go(port, path, key, body):
    """Sends a request, and returns a function that closes the connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    headers = {"Content-Type": "application/json", "X-Account": "ann", "Idempotency-Key": f'"{key}"'}
    connection.request("POST", path, json.dumps(body), headers)
    return connection.close


class Later:
    """A request whose answer is not waited for."""

    def __init__(self, *arguments, **options):
        self.thread = threading.Thread(target=self._run, args=(arguments, options))
        self.thread.start()

    def _run(self, arguments, options):
        try:
            self.result = send(*arguments, **options)
        except ConnectionError:
            self.result = None

    def answer(self):
        """The answer; None if the connection was broken."""
        self.thread.join(WAIT_S)
        return self.result


def open_gate(name):
    sql("INSERT INTO gates VALUES (%s)", name)


def is_problem(answer, status, title):
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")
    assert answer.body["title"] == title
    assert set(answer.body) >= {"type", "title", "detail"}


def check_header(port, path):
    is_problem(send(port, path, body={}), 400, "Idempotency-Key is missing")
    for header in ("abc", '""', '"abc', '"a"b"', '"ä"', '"a"; B=1', '"a";', '"a" ;b=1', '"a";b="c', '"' + "x" * 256 + '"'):
        is_problem(send_header(port, path, header.encode()), 400, "Idempotency-Key is malformed")
    is_problem(send_header(port, path, '"a"', '"b"'), 400, "Idempotency-Key is malformed")
