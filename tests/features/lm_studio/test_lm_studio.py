from __future__ import annotations
from http_harness import Appliance

ASK = {"model": "alpha", "messages": [{"role": "user", "content": "hi"}]}

async def test_smoke(server: Appliance):
    for m, p, b in [("GET","/api/v0/models",None),("GET","/api/v1/models",None),("GET","/api/v0/models/al",None),("GET","/api/v0/models/x",None),
      ("POST","/api/v0/chat/completions",ASK),("POST","/api/v0/chat/completions",{**ASK,"stream":True}),("POST","/api/v0/completions",{"model":"beta","prompt":"x"}),
      ("POST","/api/v0/embeddings",{"model":"alpha","input":"x"}),
      ("POST","/api/v1/chat",{"model":"al","input":"hi"}),("POST","/api/v1/chat",{"model":"alpha","input":"hi","stream":True}),
      ("POST","/api/v1/models/load",{"model":"beta","echo_load_config":True}),
      ("POST","/api/v1/models/unload",{"instance_id":"beta"}),
      ("POST","/api/v1/models/unload",{"instance_id":"beta"}),
      ("POST","/api/v1/models/download",{"model":"beta"}),
      ("GET","/api/v1/models/download/status/x",None),
      ("POST","/api/v1/chat",{"model":"al"}),
      ("POST","/api/v1/chat",{"model":"nope","input":"x"}),
      ("GET","/api/v1/chat",None),
      ("POST","/api/v0/chat/completions",{"model":"nope"}),
      ]:
        a = await server.ask(m,p,b)
        print(m,p,a.status,a.header("content-type"),a.body.decode())
    assert 0
