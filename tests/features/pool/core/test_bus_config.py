"""The lines of nats-server 2.15.1 as its owner understands them, and texts that could break its configuration."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from appliance.features.pool.core.bus_config import BusServing, config_text, end_of, sign_of, store_of
from appliance.features.pool.core.keys import BoxCertificate

FILES = BoxCertificate(ca="", certificate="", key="")
SERVING = BusServing(group="all", name="b1", port=4281, files=FILES, nkey="U1", route_password="r", system_password="s")


def test_the_lines_that_it_printed_once():
    assert sign_of("[1] 2026/11/27 12:13:18.798127 [INF] Server is ready") == "ready"
    assert sign_of("[ERR] 10.0.0.2:6222 - rid:5 - TLS route handshake error: tls: failed to verify certificate: x509: "
                   "certificate signed by unknown authority") == "authority"  # fmt: skip
    assert sign_of("[1] [ERR] JetStream out of resources, will be DISABLED") == "no-disk"
    assert sign_of('{"status":"unavailable","error":"JetStream not enabled (10076)"}') == "no-disk"
    assert sign_of('{"error":"JetStream is not current with the meta leader (10008)"}') == "other"
    assert end_of(["[7] [FTL] Can't listen: address already in use", "[7] [INF] bye"]).endswith("already in use")
    assert end_of(["nats-server: /x/bus.conf:6:1: error parsing X509", ""]) == "/x/bus.conf:6:1: error parsing X509"
    assert end_of([]) == ""


@given(st.text(max_size=30).filter(lambda text: "\\" not in text))
def test_a_folder_of_any_name_stays_one_text(folder: str):
    """Its lines hold the path in quotes, which ends where JSON's text ends."""
    found = re.search(r"store_dir: (.*), max_memory_store", config_text(SERVING, folder))
    assert json.loads(found[1]) == f"{folder}/{store_of(SERVING.group)}"


def test_only_a_voter_has_routes():
    assert "cluster" not in config_text(SERVING, "f")
