"""The Grafana dashboard draws what `/metrics` has."""

import json
import re

import httpx

from load_tests.processes import Server
from tools.write_dashboard import PAGE, dashboard

_NAME = re.compile(r"\brepartee_\w+")
_ANSWER = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}


def test_every_metric_of_the_dashboard_is_served(server: Server) -> None:
    assert json.loads(PAGE.read_text()) == dashboard(), "run `make docs`"
    with httpx.Client(base_url=f"http://{server.host}:{server.port}", timeout=60) as http:
        assert http.post("/v1/chat/completions", json=_ANSWER).status_code == 200
        served = set(_NAME.findall(http.get("/metrics").text))
    drawn = [
        (panel["title"], name)
        for panel in dashboard()["panels"]
        for target in panel.get("targets", [])
        for name in _NAME.findall(target["expr"])
    ]
    assert len(drawn) > 20
    assert [entry for entry in drawn if entry[1] not in served] == []
