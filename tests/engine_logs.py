"""The last lines of engines that failed, as they printed them."""

NO_MODEL = """
0.00.061.109 I common_params_fit_impl: will leave 24090 >= 1024 MiB of system memory, no changes needed
0.00.062.001 E llama_model_load: error loading model: invalid magic characters: 'abcd', expected 'GGUF'
0.00.062.020 E llama_model_load_from_file_impl: failed to load model
0.00.062.040 E srv    load_model: failed to load model, 'x.gguf'
0.00.062.060 I srv    operator(): operator(): cleaning up before exit...
0.00.062.080 E srv  llama_server: exiting due to model loading error
"""
NO_LIBRARY = (
    "llama-server: error while loading shared libraries: libcudart.so.13: cannot open shared object file: No such file"
)
NO_ROOM = """
0.01.010.000 E alloc_buffer: allocating 8192.00 MiB on device 0: cudaMalloc failed: out of memory
0.01.010.010 E alloc_tensor_range: failed to allocate CUDA0 buffer of size 8589934592
0.01.010.020 E srv    load_model: failed to load model, 'x.gguf'
"""
KERNEL = """
0.02.000.000 I slot launch_slot_: id  0 | task 0 | processing task
ggml-cuda.cu:103: CUDA error: no kernel image is available for execution on the device
ggml-cuda.cu:103: CUDA error
"""
LOST = "terminate called after throwing 'vk::DeviceLostError'\n  what():  vk::Queue::submit: ErrorDeviceLost"
