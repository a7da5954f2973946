"""A server's log: which buffers are there, and what nobody asked to read."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from appliance.core.llama.buffers import Buffers

MIB = 1 << 20

LOG = """\
0.00.051.117 I load_tensors:   CPU_Mapped model buffer size =     0.00 MiB
0.00.061.117 I sched_reserve:    Vulkan0 compute buffer size =    99.00 MiB
0.00.061.118 I common_fit_params: fitting params to free memory took 0.02 seconds
0.00.061.300 I srv    load_model: loading model '/models/m.gguf'
0.00.071.000 I load_tensors: offloaded 3/9 layers to GPU
0.00.071.117 I load_tensors:   CPU_Mapped model buffer size =   254.05 MiB
0.00.071.118 I load_tensors:      Vulkan0 model buffer size =   105.52 MiB
0.00.071.119 I llama_context: Vulkan_Host  output buffer size =     0.49 MiB
0.00.071.120 I llama_kv_cache:        CPU KV buffer size =    24.00 MiB
0.00.071.121 I llama_kv_cache:    Vulkan0 KV buffer size =     8.00 MiB
0.00.071.121 I llama_kv_cache:    Vulkan0 KV buffer size =     2.00 MiB
0.00.071.122 I sched_reserve:    Vulkan0 compute buffer size =    30.50 MiB
0.00.071.123 I sched_reserve: Vulkan_Host compute buffer size =    12.02 MiB
"""
LOADED = "0.00.072.000 I srv  llama_server: model loaded"
REQUEST = """\
0.01.906.134 I slot get_availabl: id  0 | task -1 |  - skipping, slot is empty
0.01.906.216 I slot launch_slot_: id  3 | task -1 | sampler chain: logits -> top-k -> dist
0.01.906.223 I slot launch_slot_: id  3 | task -1 | sampler params:
\trepeat_last_n = 64, repeat_penalty = 1.000
0.01.906.225 I slot process_sing: id  0 | task -1 | saving idle slot to prompt cache
0.01.906.227 I slot prompt_clear: id  0 | task -1 | clearing prompt with 0 tokens
0.01.906.247 I slot   operator(): id  3 | task 409 | cached n_tokens = 1, memory_seq_rm [1, end)
0.01.906.269 I slot init_sampler: id  3 | task 409 | init sampler, took 0.00 ms, tokens: text = 2, total = 2
0.01.919.025 I srv  update_slots: all slots are idle
"""
TOLD = """\
0.02.032.284 I slot get_availabl: id  3 | task -1 | selected slot by LCP similarity, f_sim_best = 0.500
0.02.032.365 I slot launch_slot_: id  3 | task 409 | processing task, is_child = 0
0.02.051.002 I slot print_timing: id  3 | task 409 | prompt eval time =       0.55 ms /     1 tokens
0.02.051.041 I slot      release: id  3 | task 409 | stop processing: n_tokens = 65, truncated = 0
0.02.051.041 E srv  update_slots: failed to find free space in the KV cache
"""


def read(*texts: str) -> Buffers:
    buffers = Buffers()
    for text in texts:
        for line in text.splitlines():
            buffers.read(line)
    return buffers


def test_buffers_are_summed_by_device_after_the_last_attempt():
    assert read(LOG).by_device() == {}, "nothing is known before the model is loaded"
    found = read(LOG, LOADED).by_device()
    assert set(read(LOG, LOADED).by_device({"Vulkan0": "gpu1"})) == {"ram", "gpu1"}
    line = "I load_tensors: RPC0[127.0.0.1:50172] model buffer size =    18.00 MiB"
    assert read(line, LOADED).by_device() == {"rpc:127.0.0.1:50172": 18 * MIB}
    assert found == {"ram": round((254.05 + 0.49 + 24 + 12.02) * MIB), "gpu0": round((105.52 + 10 + 30.5) * MIB)}


def test_a_server_that_wakes_up_is_counted_anew():
    assert read(LOG, LOADED, LOG, LOADED).by_device() == read(LOG, LOADED).by_device()


def test_an_absurd_size_counts_for_nothing():
    sizes = ("I x:  CUDA0 model buffer size = 99999999999999999 MiB", "I x: CUDA0 KV buffer size = 1.2.3 MiB")
    assert read(*sizes, LOADED).by_device() == {}


def test_lines_of_each_request_are_left_out_and_all_others_stay():
    buffers = Buffers()
    assert all(buffers.read(line) for line in (*LOG.splitlines(), *REQUEST.splitlines())), "it is not loaded yet"
    buffers = read(LOG, LOADED)
    assert not [line for line in REQUEST.splitlines() if buffers.read(line)]
    assert [line for line in TOLD.splitlines() if buffers.read(line)] == TOLD.splitlines()


def test_endless_lines_take_no_time():
    buffers = read(LOG, LOADED)
    began = time.process_time()
    for line in ("x" * 10_000_000, " I slot get_availabl: " * 100_000, "x" * 999, "x 1" * 333):
        assert buffers.read(line)
        assert Buffers().read(line)
    assert time.process_time() - began < 1


@given(st.lists(st.text() | st.sampled_from([*LOG.splitlines(), LOADED, *REQUEST.splitlines()])))
def test_any_log_can_be_read(lines: list[str]):
    assert all(size >= 0 for size in read(*lines).by_device().values())
